"""Where the images and sounds of a request stand in its body, and their files' places put in there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dray.kinds import KINDS
from dray.requests.images import PART, image_placer, is_image, parts_of
from dray.requests.media import IMAGES, SOUNDS, Medium, Roots, placer


class Held(NamedTuple):
    """A URL of a file: ``holder[name]``."""

    medium: Medium
    holder: dict[str, Any]
    name: str


def media_placer(roots: Roots) -> Callable[[str, dict[str, Any]], None]:
    """A function ``(url, body)`` that puts whole places into a body for what it names.

    It changes the body; BadRow says which part cannot be so.
    """
    images = image_placer(roots.get(IMAGES.root))
    sound = placer(SOUNDS, roots.get(SOUNDS.root))

    def put(url: str, body: dict[str, Any]) -> None:
        name = KINDS[url].sound
        if name is None:
            images(body)
        elif name in body:
            said = body[name]
            if not isinstance(said, str) or not said:
                raise SOUNDS.bad("the sound has no URL: give a data URL, or the name of a file", name)
            body[name] = sound(said, name)

    return put


def media_in(url: str, body: dict[str, Any]) -> Iterator[Held]:
    """The images and the sound of a request, as ingest writes them."""
    name = KINDS[url].sound
    if name is not None:
        yield Held(SOUNDS, body, name)
        return
    for _, content, place in parts_of(body.get("messages")):
        part = content[place]
        if is_image(part) and isinstance(part.get(PART), dict):
            yield Held(IMAGES, part[PART], "url")
