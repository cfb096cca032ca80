"""Where the images, sounds and videos of a request stand in its body; its files' places are put in there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dray.kinds import KINDS
from dray.requests.media.images import IMAGE
from dray.requests.media.medium import SOUNDS, Medium, Roots, placer
from dray.requests.media.parts import PartForm, parts_of
from dray.requests.media.sounds import SOUND
from dray.requests.media.videos import VIDEO

FORMS: tuple[PartForm, ...] = (IMAGE, SOUND, VIDEO)
"""What messages may hold beside text."""


class Held(NamedTuple):
    """A URL of a file: ``holder[name]``."""

    medium: Medium
    holder: dict[str, Any]
    name: str


def parts_placer(roots: Roots) -> Callable[[dict[str, Any]], None]:
    """A function that puts the files of messages into one form, with whole places for their files.

    It changes the body; BadRow says which part cannot be so. Parts of other types are the engine's to refuse.
    """
    places = {form.medium: placer(form.medium, roots.get(form.medium.root)) for form in FORMS}

    def put(body: dict[str, Any]) -> None:
        counts = dict.fromkeys(FORMS, 0)
        for field, content, number in parts_of(body.get("messages")):
            part = content[number]
            form = next((form for form in FORMS if form.takes(part)), None)
            if form is not None:
                content[number] = form.part(form.url_in(part, field), field, places[form.medium])
                counts[form] += 1
        for form, count in counts.items():
            if count > form.most:
                told = f"the row holds {count:,} {form.medium.name}s; at most {form.most} fit"
                raise form.medium.bad(told, "messages")

    return put


def media_placer(roots: Roots) -> Callable[[str, dict[str, Any]], None]:
    """A function ``(url, body)`` that puts whole places into a body for what it names.

    It changes the body; BadRow says which part cannot be so.
    """
    parts = parts_placer(roots)
    sound = placer(SOUNDS, roots.get(SOUNDS.root))

    def put(url: str, body: dict[str, Any]) -> None:
        name = KINDS[url].sound
        if name is None:
            parts(body)
        elif name in body:
            said = body[name]
            if not isinstance(said, str) or not said:
                raise SOUNDS.bad("the sound has no URL: give a data URL, or the name of a file", name)
            body[name] = sound(said, name)

    return put


def media_in(url: str, body: dict[str, Any]) -> Iterator[Held]:
    """The files of a request, as ingest writes them."""
    name = KINDS[url].sound
    if name is not None:
        yield Held(SOUNDS, body, name)
        return
    for _, content, place in parts_of(body.get("messages")):
        part = content[place]
        for form in FORMS:
            if form.has(part) and isinstance(part.get(form.type), dict):
                yield Held(form.medium, part[form.type], "url")


def is_file(part: object) -> bool:
    """Whether a part of a content is an image, a sound or a video, as ingest writes them."""
    return any(form.has(part) for form in FORMS)
