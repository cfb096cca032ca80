"""Images in the messages of a request: what a row may say of them.

A part of a content is OpenAI's, ``{"type": "image_url", "image_url": {"url": ...}}``, or that of Hugging
Face's chat templates, ``{"type": "image", ...}``. :mod:`dray.requests.media` says what its URL may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from dray.requests.media import IMAGES, Place, placer
from dray.requests.validate import BadRow

ROW_LIMIT_BYTES = 128 << 20
"""What the images of one row may have together, in bytes."""

MOST_IMAGES = 256
"""Images in one row."""

PART: Final = "image_url"
"""The type of a part that is an image, and the field that says where."""

_NAMES = ("url", "image", "path")  # of the field that says where, in a part of Hugging Face's
_DETAILS = (None, "auto", "high")
_FORM = '{"type": "image_url", "image_url": {"url": ...}}'


def is_image(part: object) -> bool:
    """Whether a part of a content is an image in OpenAI's form."""
    return isinstance(part, dict) and part.get("type") == PART


def conversations_of(messages: object) -> list[tuple[str, list[Any]]]:
    """The conversations in ``messages``, each with its field: one, or several, as embeddings may ask for."""
    if not isinstance(messages, list):
        return []
    if not any(isinstance(one, list) for one in messages):
        return [("messages", messages)]
    return [
        (f"messages[{number}]", one if isinstance(one, list) else [one])
        for number, one in enumerate(messages)
    ]


def parts_of(messages: object) -> Iterator[tuple[str, list[Any], int]]:
    """Each part of conversations that is no text: (its field, the content that holds it, its place)."""
    for field, conversation in conversations_of(messages):
        for number, message in enumerate(conversation):
            content = message.get("content") if isinstance(message, dict) else None
            if not isinstance(content, list):
                continue
            for place, part in enumerate(content):
                if isinstance(part, dict) and part.get("type", "text") != "text":
                    yield f"{field}[{number}].content[{place}]", content, place


def image_placer(root: str | None) -> Callable[[dict[str, Any]], None]:
    """A function that puts the images of a body into OpenAI's form, with whole places for their files.

    It changes the body; BadRow says which part cannot be so. Parts that are neither texts nor images are the
    engine's to refuse.
    """
    place = placer(IMAGES, root)

    def put(body: dict[str, Any]) -> None:
        count = 0
        for field, content, number in parts_of(body.get("messages")):
            part = content[number]
            if part["type"] == PART or part["type"] == "image":
                content[number] = image_part(_url_in(part, field), field, place)
                count += 1
        if count > MOST_IMAGES:
            raise BadRow(
                "invalid_image", f"the row holds {count:,} images; at most {MOST_IMAGES} fit", "messages"
            )

    return put


def image_part(url: str, field: str, place: Place) -> dict[str, Any]:
    """A part for the image at ``url``."""
    return {"type": PART, PART: {"url": place(url, field)}}


def _url_in(part: dict[str, Any], field: str) -> str:
    """The URL in a part of either form."""
    said = {name: value for name, value in part.items() if value is not None and name != "type"}
    names = [name for name in ((PART,) if part["type"] == PART else _NAMES) if name in said]
    others = said.keys() - set(names)
    if len(names) != 1 or others:
        also = f"; it also has {', '.join(sorted(map(str, others)))[:100]}" if others else ""
        raise BadRow("invalid_image", f"the part is no image of the form {_FORM}{also}", field)
    found = said[names[0]]
    if isinstance(found, dict):
        _check_detail(found, field)
        found = found.get("url")
    if not isinstance(found, str) or not found:
        raise BadRow("invalid_image", f"the part has no URL of an image; its form is {_FORM}", field)
    return found


def _check_detail(value: dict[str, Any], field: str) -> None:
    """OpenAI's ``detail`` is not vLLM's: it may say no more than that the image is to be read whole."""
    if value.get("detail") not in _DETAILS:
        raise BadRow(
            "invalid_image",
            "this detail cannot be honoured: models read each image whole; leave it out, or bound the size "
            "of images for all rows with the engine argument mm_processor_kwargs",
            f"{field}.{PART}.detail",
        )
    if others := value.keys() - {"url", "detail"}:
        raise BadRow(
            "invalid_image",
            f"the image has unknown fields: {', '.join(sorted(map(str, others)))[:100]}",
            field,
        )
