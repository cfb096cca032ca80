"""A column of images into the messages of a request.

A cell is the bytes of an image file, the name or URL of one, or what Hugging Face's data sets make of these
(an object with ``bytes`` and ``path``); a list of such is several images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.requests.images import MOST_IMAGES, PART, ROW_LIMIT_BYTES, image_part
from dray.requests.media import IMAGES, placer
from dray.requests.media_cells import file_url
from dray.requests.template import value_of
from dray.requests.validate import BadRow

Parts = list[dict[str, Any]]


def image_reader(column: str, root: str | None) -> Callable[[Mapping[str, Any]], Parts]:
    """A function that gives the images in a row, as parts of a content; BadRow says what is wrong."""
    place = placer(IMAGES, root)

    def part_of(cell: object, field: str) -> dict[str, Any]:
        return image_part(file_url(cell, field, IMAGES), field, place)

    def read(row: Mapping[str, Any]) -> Parts:
        value = value_of(row, column, "missing_column")
        if value is None:
            raise BadRow(
                "missing_value",
                f"the column {column!r} is empty (null) in this row; for no image, give an empty list",
                column,
            )
        if not isinstance(value, list):
            return [part_of(value, column)]
        parts = [part_of(one, f"{column}[{number}]") for number, one in enumerate(value)]
        if (
            len(parts) > MOST_IMAGES
            or sum(len(part[PART]["url"]) for part in parts) * 3 // 4 > ROW_LIMIT_BYTES
        ):
            raise BadRow(
                "invalid_image",
                f"the row has {len(parts):,} images; at most {MOST_IMAGES} fit, "
                f"of {ROW_LIMIT_BYTES:,} bytes together",
                column,
            )
        return parts

    return read


def with_images(messages: list[dict[str, Any]], images: Parts, column: str) -> list[dict[str, Any]]:
    """The images in the places that the messages hold for them (``{"type": "image"}``), in their order.

    Where no message holds one, all images come first in the first message of the user.
    """
    held = [
        (content, place)
        for message in messages
        if isinstance(content := message.get("content"), list)
        for place, part in enumerate(content)
        if _is_place(part)
    ]
    if not held:
        return _put_first(messages, images, column)
    if len(held) != len(images):
        raise BadRow(
            "invalid_image",
            f"the messages have places for {len(held)} images, and the column {column!r} holds {len(images)}",
            column,
        )
    for (content, place), image in zip(held, images, strict=True):
        content[place] = image
    return messages


def _is_place(part: object) -> bool:
    return (
        isinstance(part, dict)
        and {name for name, value in part.items() if value is not None} == {"type"}
        and (part["type"] == "image")
    )


def _put_first(messages: list[dict[str, Any]], images: Parts, column: str) -> list[dict[str, Any]]:
    if not images:
        return messages
    for number, message in enumerate(messages):
        if message.get("role") == "user":
            content = message.get("content")
            texts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            return [*messages[:number], {**message, "content": [*images, *texts]}, *messages[number + 1 :]]
    raise BadRow("invalid_image", "no message is the user's, so none can hold the image", column)
