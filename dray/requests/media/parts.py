"""Parts of messages that are no text: their forms, and where they stand.

Rows write an image, a sound or a video in several forms. Ingest makes one of them,
``{"type": "image_url", "image_url": {"url": ...}}`` or the same with ``audio_url`` or ``video_url``. What its
URL may be :mod:`dray.requests.media.medium` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.requests.media.medium import Medium, Place
from dray.requests.validate import BadRow

Part = dict[str, Any]

ROW_LIMIT_BYTES = 128 << 20
"""What the files of one row may have together, in bytes."""


def no_other_fields(value: Part, field: str) -> BadRow | None:
    """Nothing is wrong with the fields beside the URL."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartForm:
    """How messages hold files of a ``medium``.

    ``type`` is the type of a part in the one form, and the field that says where its file is. ``plain`` is
    the type in the form of Hugging Face's chat templates, and ``names`` are its fields for that. A row holds
    at most ``most``. Beside the URL a row may give the fields ``beside``; ``judged`` says what is wrong with
    them. A part of the type ``held`` has the file itself; ``held_url`` makes a URL of it.
    """

    medium: Medium
    type: str
    plain: str
    names: tuple[str, ...]
    most: int
    beside: frozenset[str] = frozenset()
    judged: Callable[[Part, str], BadRow | None] = no_other_fields
    held: str | None = None
    held_url: Callable[[Part, str], str] | None = None

    @property
    def written(self) -> str:
        """The one form, for people."""
        return f'{{"type": "{self.type}", "{self.type}": {{"url": ...}}}}'

    def has(self, part: object) -> bool:
        """Whether a part is of the one form."""
        return isinstance(part, dict) and part.get("type") == self.type

    def part(self, url: str, field: str, place: Place) -> Part:
        """A part of the one form for the file at ``url``."""
        return {"type": self.type, self.type: {"url": place(url, field)}}

    def takes(self, part: Part) -> bool:
        """Whether a part is meant to be of this medium, in any form."""
        return part["type"] in (self.type, self.plain, self.held)

    def url_in(self, part: Part, field: str) -> str:
        """The URL in a part of any form; BadRow where it has none."""
        if part["type"] == self.held and self.held_url is not None:
            return self.held_url(part, field)
        said = {name: value for name, value in part.items() if value is not None and name != "type"}
        names = [name for name in ((self.type,) if self.has(part) else self.names) if name in said]
        others = said.keys() - set(names)
        if len(names) != 1 or others:
            also = f"; it also has {listed(others)}" if others else ""
            raise self.medium.bad(
                f"the part is no {self.medium.name} of the form {self.written}{also}", field
            )
        found = said[names[0]]
        if isinstance(found, dict):
            if (bad := self.judged(found, field)) is not None:
                raise bad
            if others := found.keys() - {"url", *self.beside}:
                raise self.medium.bad(f"the {self.medium.name} has unknown fields: {listed(others)}", field)
            found = found.get("url")
        if not isinstance(found, str) or not found:
            raise self.medium.bad(
                f"the part has no URL of {self.medium.one}; its form is {self.written}", field
            )
        return found


def listed(names: Iterable[object]) -> str:
    """Names for people, in their order."""
    return ", ".join(sorted(map(str, names)))[:100]


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
