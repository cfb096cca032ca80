"""Cells of a column of images, sounds or videos.

A cell is the bytes of a file, the name or URL of one, or what Hugging Face's data sets make of these (an
object with ``bytes`` and ``path``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.requests.columns.template import empty_cell, value_of
from dray.requests.media.medium import SOUNDS, Medium, data_url, placer


def file_url(cell: object, field: str, medium: Medium) -> str:
    """The URL or name that a cell holds, or one that holds its bytes; BadRow where it holds neither."""
    if isinstance(cell, Mapping):
        content, name = cell.get("bytes"), cell.get("path") or cell.get("url")
        cell = content if content is not None else name
    if isinstance(cell, bytes | bytearray | memoryview):
        size = len(cell)
        if not 0 < size <= medium.most_bytes:
            raise medium.bad(
                f"the {medium.name} has {size:,} bytes; from 1 to {medium.most_bytes:,} are taken", field
            )
        return data_url(bytes(cell))
    if isinstance(cell, str) and cell:
        return cell
    if cell is None or cell == "":
        raise medium.bad(f"the column holds no {medium.name}: no bytes, and an empty name", field)
    raise medium.bad(
        f"the column holds a {type(cell).__name__}; it can hold the bytes of a file, or a name or URL", field
    )


def sound_reader(column: str, root: str | None) -> Callable[[Mapping[str, Any]], str]:
    """A function that gives the URL of the sound in a row; BadRow says what is wrong."""
    place = placer(SOUNDS, root)

    def read(row: Mapping[str, Any]) -> str:
        value = value_of(row, column, "missing_column")
        if value in (None, ""):
            raise empty_cell(column, null=value is None)
        return place(file_url(value, column, SOUNDS), column)

    return read
