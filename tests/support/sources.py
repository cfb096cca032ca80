"""Sources by their options, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from dray.requests import sources
from dray.requests.row_shape import RowShape
from dray.requests.sources import Source

_OF_SHAPES = {one.name for one in fields(RowShape)}


def source_of(inputs: Sequence[str] | str, **options: Any) -> Source:
    """The source with these options, those of its rows' shape among them."""
    shape = {name: options.pop(name) for name in _OF_SHAPES & options.keys()}
    if "keep_columns" in shape:
        shape["keep_columns"] = tuple(dict.fromkeys(shape["keep_columns"]))
    return sources.source_of(inputs, RowShape(**shape), **options)
