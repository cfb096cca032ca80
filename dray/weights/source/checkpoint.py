"""A model's weights as a whole: every file sound, and the index true."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from dray.errors import ConfigError, WeightsError
from dray.weights.source.header import Header, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PARAMS = "params.json"  # the config of Mistral's own format
NATIVE = "consolidated.safetensors"  # its weights, where they are one file
# model.fp32.safetensors, model.fp32-00001-of-00002.safetensors, model-00001-of-00002.fp32.safetensors
_VARIANT = re.compile(r"model(?:-\d+-of-\d+)?\.[^.]+\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def refuse_incomplete(model: str, names: Collection[str], *, weights: bool = True) -> None:
    """What a model's folder must hold, wherever it is: a config and, unless told otherwise, safetensors.

    Raises:
        ConfigError: says what is missing, or that there are only pickles.
    """
    if "config.json" not in names:
        refuse_native(model, names)
        raise ConfigError(f"model {model}: no config.json in it; is this the model's folder?")
    if not weights or any(name.endswith(".safetensors") for name in names):
        return
    refuse_pickles(model, names)
    raise ConfigError(f"model {model}: no *.safetensors file in it")


def refuse_native(model: str, names: Collection[str]) -> None:
    """Refuse a folder that holds a model in Mistral's own format; for one without a ``config.json``.

    Raises:
        ConfigError: it does.
    """
    if PARAMS in names and any(map(is_native, names)):
        raise ConfigError(
            f"model {model}: it is in Mistral's own format ({PARAMS}, consolidated*.safetensors), and dray "
            "needs a config.json; name a repository or a folder in Hugging Face's format (config.json, "
            "model*.safetensors)"
        )


def refuse_pickles(model: str, names: Collection[str]) -> None:
    """Refuse a folder without safetensors files where it has pickles: they can run code.

    Raises:
        ConfigError: it has.
    """
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    if pickles:
        raise ConfigError(
            f"model {model}: its weights are pickle files ({pickles[0]}), which can run code when loaded; "
            "convert them to safetensors"
        )


def is_variant(name: str) -> bool:
    """Whether a file of weights is of a copy in another precision, such as ``model.fp32.safetensors``."""
    return _VARIANT.fullmatch(name) is not None


def is_native(name: str) -> bool:
    """Whether a file of weights is in Mistral's own format: other names, for another class of an engine."""
    return name.startswith("consolidated") and name.endswith(".safetensors")


def leaves_mistrals(names: Collection[str], chosen: Collection[str]) -> bool:
    """Whether files of Mistral's own format are not among the chosen ones, of a model with its tokenizer.

    ``names`` are of all files, from the model's folder. vLLM looks for the same ones, also in folders below.
    """
    left = {name.rpartition("/")[2] for name in names if name not in chosen}
    tokenizers = (name for name in names if name == "tekken.json" or name.startswith("tokenizer.model.v"))
    return any(map(is_native, left)) and any(tokenizers)


def counting(names: Collection[str], places: Mapping[str, str] | None) -> list[str]:
    """Which safetensors files of a folder make up the checkpoint; ``places`` is its index, None without one.

    With an index those that it names, also if they are missing. Without one all of the folder; but where
    ``model.safetensors`` is there, its variants and ``consolidated*`` are second copies, and left out.
    transformers does the same.
    """
    if places is not None:
        return sorted(set(places.values()))
    found = sorted(name for name in names if name.endswith(".safetensors"))
    if SINGLE not in found:
        return found
    return [name for name in found if not (is_variant(name) or is_native(name))]


def check_checkpoint(folder: Path, sizes: Mapping[str, int] | None = None) -> dict[str, Header]:
    """The headers of the safetensors files that make up the checkpoint, by file name.

    With an index those are the files it names, each holding exactly the tensors it says. Files that do not
    count are left alone (some repositories carry a second copy): see :func:`counting`.

    Args:
        sizes: bytes of the whole files by name, where the folder holds their beginnings alone.

    Raises:
        WeightsError: a file is missing or damaged, or the index is not true; names file and tensor.
    """
    index = folder / INDEX
    places = places_of(index.read_bytes(), str(index)) if index.is_file() else None
    names = counting([file.name for file in folder.glob("*.safetensors")], places)
    headers = {name: _header(folder / name, sizes, places is not None) for name in names}
    compare(str(folder), places, headers)
    return headers


def places_of(index: bytes, name: str) -> dict[str, str]:
    """Tensor name to file name, as the index says.

    Raises:
        WeightsError: it is no index, or points outside the model's folder. ``name`` is what it is called.
    """
    try:
        places = json.loads(index)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WeightsError(f"{name}: no valid index: weight_map is missing") from None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise WeightsError(f"{name}: weight_map does not say a file for each tensor")
    for tensor, file in places.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise WeightsError(
                f"{name}: tensor {tensor!r}: {file!r} is not a safetensors file of this folder"
            )
    return places


def compare(folder: str, places: Mapping[str, str] | None, headers: Mapping[str, Header]) -> None:
    """The index against the headers; without an index (None), that no tensor is in two files.

    Raises:
        WeightsError: names file and tensor.
    """
    if places is None:
        _refuse_doubles(folder, headers)
        return
    held = {(tensor.name, file) for file, header in headers.items() for tensor in header.tensors}
    said = set(places.items())
    for tensor, file in sorted(said - held):
        missing = "" if file in headers else ", which is missing"
        raise WeightsError(f"{folder}/{INDEX}: tensor {tensor!r} is not in {file}{missing}")
    for tensor, file in sorted(held - said):
        raise WeightsError(f"{folder}/{file}: tensor {tensor!r} is not in {INDEX}, or elsewhere in it")


def _header(file: Path, sizes: Mapping[str, int] | None, indexed: bool) -> Header:
    try:
        return read_header(file, None if sizes is None else sizes[file.name])
    except (FileNotFoundError, KeyError):
        reason = f"missing, though {INDEX} names it" if indexed else "missing"
        raise WeightsError(f"{file}: {reason}") from None
    except OSError as error:
        raise WeightsError(f"{file}: cannot be read: {error.strerror}") from None


def _refuse_doubles(folder: str, headers: Mapping[str, Header]) -> None:
    seen: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in seen:
                raise WeightsError(
                    f"{folder}: tensor {tensor.name!r} is in {seen[tensor.name]} and in {file}, "
                    f"and there is no {INDEX} to say which one counts"
                )
            seen[tensor.name] = file
