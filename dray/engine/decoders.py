"""What engines need to decode sounds and videos, known without one."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

from dray.errors import ConfigError
from dray.requests.media.medium import MEDIA, SOUNDS, VIDEOS, Medium

_LIBRARIES: dict[Medium, tuple[str, ...]] = {
    SOUNDS: ("av", "soundfile", "soxr", "scipy"),  # vLLM's extra audio, and dray's
    VIDEOS: ("cv2",),  # vLLM itself brings it
}
_ADVICE = {
    SOUNDS: "install dray with its extra audio (README, Install)",
    VIDEOS: "install opencv-python-headless, as vLLM asks for it",
}


def missing_libraries(medium: Medium) -> list[str]:
    """The libraries for a medium that are not installed here."""
    return [name for name in _LIBRARIES.get(medium, ()) if find_spec(name) is None]


def refuse_without_libraries(media: Collection[Medium]) -> None:
    """Refuse to go on where one of these cannot be decoded.

    Raises:
        ConfigError: names the libraries that are missing.
    """
    for medium in MEDIA:
        missing = missing_libraries(medium) if medium in media else []
        if missing:
            raise ConfigError(told_of(medium, missing))


def told_of(medium: Medium, missing: list[str]) -> str:
    """What to do about missing libraries."""
    return f"{medium.name} needs {', '.join(missing)} on every node with a replica: {_ADVICE[medium]}"
