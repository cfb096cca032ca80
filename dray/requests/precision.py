"""Numbers of the input as their writer wrote them, also within lists and objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

EXACT = 2**53
"""From here on floats skip whole numbers."""

ROUNDED = 2**63
"""From here on the parser of JSON makes floats of whole numbers."""

INTEGERS = range(-(2**63), 2**64)
"""What JSON can hold of whole numbers, as this parser reads and writes it."""


def whole(value: Any) -> Any:
    """A whole number as an integer, as vLLM reads it: 64.0 is 64. Anything else as it is.

    pandas writes floats for all whole numbers of a column where one is missing.
    """
    if type(value) is float and value.is_integer() and abs(value) < EXACT:
        return int(value)
    return value


def holds_rounded(value: Any) -> bool:
    """Whether a list or an object of parsed JSON holds a float that may have been a whole number.

    Made for long lists of floats.
    """
    if not isinstance(value, list | dict):
        return False
    return any(max(floats) >= ROUNDED or min(floats) <= -ROUNDED for floats in _of_type(float, value))


def holds_long(value: Any) -> bool:
    """Whether it is, or holds, a whole number of more than 64 bits."""
    return any(one not in INTEGERS for numbers in _of_type(int, [value]) for one in numbers)


def writes_long(text: bytes | str, *path: str) -> bool:
    """Whether JSON holds, at this path, a whole number that its parser rounded; 1e20 is a float.

    Asked where the parsed value :func:`holds_rounded`: this parser is a slow one.
    """
    try:
        found = json.loads(text)
    except RecursionError:  # the parser of rows takes more levels
        return True
    for name in path:
        found = found[name]
    return holds_long(found)


def _of_type(kind: type, value: list[Any] | dict[str, Any]) -> Iterator[list[Any]]:
    """All values of a type in nested ones: those of each list or object."""
    waiting: list[Any] = [value]
    while waiting:
        part = waiting.pop()
        values = list(part.values()) if type(part) is dict else part
        kinds = set(map(type, values))
        if kind in kinds:
            yield values if len(kinds) == 1 else [one for one in values if type(one) is kind]
        if not kinds.isdisjoint((list, dict)):
            waiting += [one for one in values if type(one) in (list, dict)]


def in_own_precision(column: pyarrow.Array[Any]) -> pyarrow.Array[Any]:
    """Numbers of 32 bits as those of 64 that are written alike: 0.1, and not the nearest one to it."""
    import pyarrow

    texts = _retyped(column.type, pyarrow.string())
    if texts == column.type:
        return column
    return column.cast(texts).cast(_retyped(column.type, pyarrow.float64()))


def _retyped(kind: Any, wanted: pyarrow.DataType) -> Any:
    """A type of Arrow with ``wanted`` in place of numbers of 32 bits, at any depth."""
    import pyarrow
    from pyarrow import types

    if types.is_float32(kind):
        return wanted
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_retyped(field.type, wanted)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(kind.key_type, _retyped(kind.item_type, wanted))
    if types.is_list(kind):
        return pyarrow.list_(_retyped(kind.value_type, wanted))
    if types.is_large_list(kind):
        return pyarrow.large_list(_retyped(kind.value_type, wanted))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_retyped(kind.value_type, wanted), kind.list_size)
    return kind


def with_short_halves(values: list[Any], kind: pyarrow.DataType) -> list[Any]:
    """The values of a column of this type, with numbers of 16 bits as those of 64 that are written alike.

    Arrow writes their digits as if they had 64 bits.
    """
    return [_shortened(value, kind) for value in values] if _holds_halves(kind) else values


def _holds_halves(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    return types.is_float16(kind) or any(_holds_halves(kind.field(at).type) for at in range(kind.num_fields))


def _shortened(value: Any, kind: Any) -> Any:
    import numpy
    from pyarrow import types

    if types.is_float16(kind):
        return None if value is None else float(str(numpy.float16(value)))
    if isinstance(value, dict) and types.is_struct(kind):
        return {field.name: _shortened(value[field.name], field.type) for field in kind}
    if isinstance(value, dict) and types.is_map(kind):
        return {name: _shortened(one, kind.item_type) for name, one in value.items()}
    if isinstance(value, list) and not types.is_map(kind):
        return [_shortened(one, kind.value_type) for one in value]
    return value
