"""Images in the messages of a request: what a row may say of them, and where they are.

A part of a content is OpenAI's, ``{"type": "image_url", "image_url": {"url": ...}}``, or that of Hugging
Face's chat templates, ``{"type": "image", ...}``. Its URL is the image itself (``data:``), or names a file
below the root that the job's user gave. Ingest writes the whole place of such a file into the spool, and a
shard task reads it (:mod:`dray.shard.image_rows`): nothing that a row says makes an engine fetch anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final

from dray.errors import ConfigError
from dray.requests.validate import BadRow, check_text
from dray.storage.files import absolute, local_path
from dray.storage.objects import is_object, is_web

IMAGE_LIMIT_BYTES = 32 << 20
"""The largest image file that is taken, in bytes: a large photograph without loss."""

ROW_LIMIT_BYTES = 128 << 20
"""What the images of one row may have together, in bytes."""

MOST_IMAGES = 256
"""Images in one row."""

PART: Final = "image_url"
"""The type of a part that is an image, and the field that says where."""

NAMED: Final = re.compile(rb'"image_url":\{"url":("(?!(?i:data):)(?:[^"\\]|\\.)*")\}')
"""What is found in each line of the spool that names an image file, and in few others."""

_DATA = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*;base64,", re.ASCII | re.IGNORECASE)
_SIGNATURES = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"RIFF", "webp"),
)
_NAMES = ("url", "image", "path")  # of the field that says where, in a part of Hugging Face's
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_OF_A_QUERY = re.compile("[%?#]")  # means something else in an address on the web
_LONGEST_NAME = 1024  # bytes, in S3
_ODD = {"", ".", ".."}  # no parts of a name: one leads out of the root, object stores refuse the others
_DETAILS = (None, "auto", "high")
_FORM = '{"type": "image_url", "image_url": {"url": ...}}'

Place = Callable[[str, str], str]
"""``(url, field)`` to the URL in the request; BadRow names ``field``."""


def data_url(content: bytes) -> str:
    """An image file as a URL that holds it."""
    kind = next((name for start, name in _SIGNATURES if content.startswith(start)), "octet-stream")
    sort = "application" if kind == "octet-stream" else "image"
    return f"data:{sort}/{kind};base64,{b64encode(content).decode('ascii')}"


def is_data(url: str) -> bool:
    """Whether a URL holds its image itself."""
    return url[:5].lower() == "data:"


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
    place = placer(root)

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


def placer(root: str | None) -> Place:
    """What makes a whole place of the URL or name of an image, below ``root`` unless it is a data URL."""
    below = None if root is None else ImageRoot(root)

    def place(url: str, field: str) -> str:
        if is_data(url):
            if not _DATA.match(url, 0, 256):
                raise BadRow(
                    "invalid_image", "the data URL holds no base64 (data:image/png;base64,...)", field
                )
            return url
        check_text(url, field)
        if below is None:
            raise BadRow(
                "invalid_image",
                "the image is a name or a URL, and nothing says where images may lie: give --image-root, a "
                "folder or a bucket's prefix, or put the image into the row (data:image/png;base64,...)",
                field,
            )
        return below.place(url, field)

    return place


class ImageRoot:
    """A folder, or a prefix of an object store, below which the images of a job lie.

    Raises:
        ConfigError: the root is empty.
    """

    def __init__(self, root: str) -> None:
        given = root.strip().rstrip("/")
        if not given and not root.strip():
            raise ConfigError(
                "image_root is empty: give a folder, or a bucket's prefix such as s3://bucket/images"
            )
        self._remote = is_object(root)
        self._web = is_web(root)
        self._root = given if self._remote else absolute(str(local_path(given or "/")))

    def place(self, url: str, field: str) -> str:
        """Where the image of this name or URL lies; BadRow where that is not below the root."""
        name = url.removeprefix("file://") if not self._remote else url
        whole = "://" in name if self._remote else name.startswith("/")
        begin = self._root.rstrip("/") + "/"
        if whole and not name.startswith(begin):
            raise BadRow(
                "invalid_image", f"the image is not below the job's image_root ({self._root})", field
            )
        rest = name.removeprefix(begin) if whole else name
        if "://" in rest or not _ODD.isdisjoint(rest.split("/")) or self._is_odd(begin, rest):
            raise BadRow(
                "invalid_image",
                f"the image is no name of a file below the job's image_root ({self._root}), as cats/1.jpg is",
                field,
            )
        return begin + rest

    def _is_odd(self, root: str, name: str) -> bool:
        """Whether no store takes such a name, or takes it for another."""
        if _CONTROL.search(name) or len(f"{root}{name}".encode()) > _LONGEST_NAME:
            return True
        return self._web and _OF_A_QUERY.search(name) is not None


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
