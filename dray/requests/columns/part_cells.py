"""A column of images, sounds or videos into the messages of a request.

A cell is the bytes of a file, the name or URL of one, or what Hugging Face's data sets make of these (an
object with ``bytes`` and ``path``); a list of such is several files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.requests.columns.media_cells import file_url
from dray.requests.columns.template import empty_cell, value_of
from dray.requests.media.medium import placer
from dray.requests.media.parts import ROW_LIMIT_BYTES, Part, PartForm


def parts_reader(form: PartForm, column: str, root: str | None) -> Callable[[Mapping[str, Any]], list[Part]]:
    """A function that gives the files in a row, as parts of a content; BadRow says what is wrong."""
    medium, place = form.medium, placer(form.medium, root)

    def part_of(cell: object, field: str) -> Part:
        return form.part(file_url(cell, field, medium), field, place)

    def read(row: Mapping[str, Any]) -> list[Part]:
        value = value_of(row, column, "missing_column")
        if value in (None, ""):
            advice = f"; for no {medium.name}, give an empty list, which JSON lines and Parquet can hold"
            raise empty_cell(column, advice, null=value is None)
        if not isinstance(value, list):
            return [part_of(value, column)]
        parts = [part_of(one, f"{column}[{number}]") for number, one in enumerate(value)]
        size = sum(len(part[form.type]["url"]) for part in parts) * 3 // 4
        if len(parts) > form.most or size > ROW_LIMIT_BYTES:
            raise medium.bad(
                f"the row has {len(parts):,} {medium.name}s; at most {form.most} fit, "
                f"of {ROW_LIMIT_BYTES:,} bytes together",
                column,
            )
        return parts

    return read


def with_parts(form: PartForm, messages: list[Part], parts: list[Part], column: str) -> list[Part]:
    """The files in the places that the messages hold for them (``{"type": "image"}``), in their order.

    Where no message holds one, all files come first in the first message of the user.
    """
    held = [
        (content, place)
        for message in messages
        if isinstance(content := message.get("content"), list)
        for place, part in enumerate(content)
        if _is_place(form, part)
    ]
    if not held:
        return _put_first(form, messages, parts, column)
    name = form.medium.name
    if len(held) != len(parts):
        raise form.medium.bad(
            f"the messages have places for {len(held)} {name}s, and the column {column!r} holds {len(parts)}",
            column,
        )
    for (content, place), part in zip(held, parts, strict=True):
        content[place] = part
    return messages


def _is_place(form: PartForm, part: object) -> bool:
    return (
        isinstance(part, dict)
        and {name for name, value in part.items() if value is not None} == {"type"}
        and (part["type"] == form.plain)
    )


def _put_first(form: PartForm, messages: list[Part], parts: list[Part], column: str) -> list[Part]:
    if not parts:
        return messages
    for number, message in enumerate(messages):
        if message.get("role") == "user":
            content = message.get("content")
            texts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            return [*messages[:number], {**message, "content": [*parts, *texts]}, *messages[number + 1 :]]
    raise form.medium.bad(f"no message is the user's, so none can hold the {form.medium.name}", column)
