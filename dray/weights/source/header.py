"""The header of a safetensors file, read as strictly as the reference implementation does, and more so.

The format (https://huggingface.co/docs/safetensors): 8 bytes of little-endian length N, N bytes of JSON,
data. Rules of ``SafeTensors::read_metadata`` and ``Metadata::validate`` (safetensors 0.8, ``tensor.rs``).
Refused beyond those: duplicate names, unknown fields of a tensor, a tensor written as an array,
``"__metadata__": null``. No library writes them, and readers disagree on what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dray.errors import WeightsError

HEADER_LIMIT = 100_000_000
"""Bytes of JSON (``MAX_HEADER_SIZE``)."""

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element, by the name of its type (``Dtype::bitsize``)."""

_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_USIZE = 2**64  # the reference counts in 64 bits, and refuses what overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor: its bytes are the half-open range [``start``, ``end``) of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checked header. ``tensors`` are in the order of their data, which begins at byte ``data_start``."""

    tensors: tuple[TensorInfo, ...]
    data_start: int


def read_header(path: Path, size: int | None = None) -> Header:
    """The header of a file, checked against the file's size; reads nothing of the data.

    Args:
        size: bytes of the whole file, where ``path`` holds its beginning alone.

    Raises:
        WeightsError: it is not a sound safetensors file; says which tensor, and why.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        text = file.read(length) if len(start) == 8 and length <= HEADER_LIMIT else b""
    return parse_header(start + text, path.stat().st_size if size is None else size, file=str(path))


def parse_header(start: bytes, size: int, *, file: str) -> Header:
    """The header in the first bytes of a file of ``size`` bytes.

    Args:
        start: at least the length and the JSON; what follows is not looked at.
        file: how errors call the file.

    Raises:
        WeightsError: see :func:`read_header`.
    """
    problems = _Problems(file)
    text = _text(start, size, problems)
    values = _json(text, problems)
    _check_metadata(values.pop(_METADATA, {}), problems)
    tensors = tuple(
        sorted(
            (_tensor(name, value, problems) for name, value in values.items()),
            key=lambda tensor: (tensor.start, tensor.end),
        )
    )
    data_start = 8 + len(text)
    _cover(tensors, size - data_start, problems)
    return Header(tensors=tensors, data_start=data_start)


class _Problems:
    """Raises with the file's name in front."""

    def __init__(self, file: str) -> None:
        self._file = file

    def refuse(self, what: str, tensor: str | None = None) -> NoReturn:
        where = f"{self._file}: tensor {tensor!r}" if tensor is not None else self._file
        raise WeightsError(f"{where}: {what}")


def _text(start: bytes, size: int, problems: _Problems) -> bytes:
    if size < 8:
        problems.refuse(f"{size} bytes are too few for a safetensors file")
    length = int.from_bytes(start[:8], "little")
    if length > HEADER_LIMIT:
        problems.refuse(f"not a safetensors file, or damaged: its header would have {length:,} bytes")
    if 8 + length > size or 8 + length > len(start):
        problems.refuse(f"truncated: a header of {length:,} bytes in a file of {size:,}")
    return start[8 : 8 + length]


def _json(text: bytes, problems: _Problems) -> dict[str, Any]:
    try:
        values = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_int=_count, parse_constant=_refuse_constant
        )
    except RecursionError:
        problems.refuse("its header is nested too deeply")
    except ValueError as error:  # of JSON, of UTF-8, and of the hooks
        problems.refuse(f"its header is not valid: {error}")
    if not isinstance(values, dict):
        problems.refuse("its header is not a JSON object")
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        for text in (name, value):
            if isinstance(text, str):
                text.encode()  # a lone surrogate is no text
        if name in found:
            raise ValueError(f"{name!r} stands in it twice")
        found[name] = value
    return found


def _count(text: str) -> int:
    if text.startswith("-") or len(text) > 20 or int(text) >= _USIZE:
        raise ValueError(f"{text[:30]} is no 64-bit count")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _check_metadata(value: Any, problems: _Problems) -> None:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        problems.refuse(f"{_METADATA} is not an object of strings")


def _tensor(name: str, value: Any, problems: _Problems) -> TensorInfo:
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        problems.refuse("is not an object of dtype, shape and data_offsets", name)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        problems.refuse(f"unknown dtype {str(dtype)[:40]!r}", name)
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        problems.refuse("shape and data_offsets are not lists of counts", name)
    start, end = offsets
    if end < start:
        problems.refuse(f"ends at {end:,}, before its start at {start:,}", name)
    if end - start != _bytes(dtype, shape, name, problems):
        problems.refuse(f"{end - start:,} bytes of data for {dtype} {shape}", name)
    return TensorInfo(name=name, dtype=dtype, shape=tuple(shape), start=start, end=end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _bytes(dtype: str, shape: list[int], name: str, problems: _Problems) -> int:
    bits = 1
    for factor in (*shape, BITS[dtype]):
        bits *= factor
        if bits >= _USIZE:
            problems.refuse(f"a shape of {shape} overflows", name)
    if bits % 8:
        problems.refuse(f"{dtype} {shape} does not end on a byte", name)
    return bits // 8


def _cover(tensors: Iterable[TensorInfo], size: int, problems: _Problems) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            kind = "overlaps the one before" if tensor.start < end else "leaves a gap before it"
            problems.refuse(f"starts at {tensor.start:,}, which {kind} (it ends at {end:,})", tensor.name)
        end = tensor.end
    if end != size:
        what = "truncated" if size < end else "longer than its header says"
        problems.refuse(f"{what}: tensors take {end:,} bytes, the file has {size:,} for them")
