"""What engines need to decode sound, known without one."""

from __future__ import annotations

from importlib.util import find_spec

from dray.errors import ConfigError

_LIBRARIES = ("av", "soundfile", "soxr", "scipy")  # vLLM's extra audio, and dray's


def missing_libraries() -> list[str]:
    """The libraries for sound that are not installed here."""
    return [name for name in _LIBRARIES if find_spec(name) is None]


def refuse_without_libraries() -> None:
    """Refuse to go on where sound cannot be decoded.

    Raises:
        ConfigError: names the libraries that are missing.
    """
    missing = missing_libraries()
    if missing:
        raise ConfigError(told_of(missing))


def told_of(missing: list[str]) -> str:
    """What to do about missing libraries."""
    return (
        f"sound needs {', '.join(missing)} on every node with a replica: install dray with its extra audio, "
        "as in dray[gpu,audio]"
    )
