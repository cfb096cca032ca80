"""A model directory's weights as a whole: every file sound, and the index true."""

from __future__ import annotations

import json
from pathlib import Path

from dray.errors import WeightsError
from dray.weights.header import Header, read_header

INDEX = "model.safetensors.index.json"


def check_checkpoint(folder: Path) -> dict[str, Header]:
    """The headers of the safetensors files that make up the checkpoint, by file name.

    With an index those are the files it names, each holding exactly the tensors it says; files that it does
    not name are left alone (some repositories carry a second copy). Without one, all files of the folder.

    Raises:
        WeightsError: a file is missing or damaged, or the index is not true; names file and tensor.
    """
    index = folder / INDEX
    places = _places(index) if index.is_file() else None
    names = sorted(set(places.values())) if places is not None else _files(folder)
    headers = {name: _header(folder / name, places is not None) for name in names}
    if places is None:
        _refuse_doubles(folder, headers)
    else:
        _compare(index, places, headers)
    return headers


def _files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.safetensors"))


def _places(index: Path) -> dict[str, str]:
    """Tensor name to file name, as the index says."""
    try:
        places = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WeightsError(f"{index}: no valid index: weight_map is missing") from None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise WeightsError(f"{index}: weight_map does not say a file for each tensor")
    for tensor, file in places.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise WeightsError(
                f"{index}: tensor {tensor!r}: {file!r} is not a safetensors file of this folder"
            )
    return places


def _header(file: Path, indexed: bool) -> Header:
    try:
        return read_header(file)
    except FileNotFoundError:
        reason = f"missing, though {INDEX} names it" if indexed else "missing"
        raise WeightsError(f"{file}: {reason}") from None
    except OSError as error:
        raise WeightsError(f"{file}: cannot be read: {error.strerror}") from None


def _refuse_doubles(folder: Path, headers: dict[str, Header]) -> None:
    seen: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in seen:
                raise WeightsError(
                    f"{folder}: tensor {tensor.name!r} is in {seen[tensor.name]} and in {file}, "
                    f"and there is no {INDEX} to say which one counts"
                )
            seen[tensor.name] = file


def _compare(index: Path, places: dict[str, str], headers: dict[str, Header]) -> None:
    held = {(tensor.name, file) for file, header in headers.items() for tensor in header.tensors}
    said = set(places.items())
    for tensor, file in sorted(said - held):
        raise WeightsError(f"{index}: tensor {tensor!r} is not in {file}")
    for tensor, file in sorted(held - said):
        raise WeightsError(f"{index.parent / file}: tensor {tensor!r} is not in {INDEX}, or elsewhere in it")
