"""The engine arguments that follow from the files in a model's folder: which of them an engine reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.errors import ConfigError
from dray.weights.source.checkpoint import INDEX, SINGLE, counting
from dray.weights.source.modules import names_in

# vLLM's formats that read every safetensors file of a folder without an index, also a second copy.
_READ_ALL = frozenset({"safetensors", "fastsafetensors", "instanttensor", "runai_streamer"})


def formats_of(model: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that the files of a local folder ask for, and that the user did not name.

    ``arguments`` are the user's. None for what is no folder.

    Raises:
        ConfigError: the engine would read other files than the user's arguments say, or more.
    """
    names = names_in(Path(model))
    given = arguments.get("load_format")
    copies = _second_copies(names)
    if not copies:
        return {}
    if given is None:
        return {"load_format": "dray"}  # vLLM's own would load the copies, too, and the last file would win
    if str(given).lower() in _READ_ALL:
        raise ConfigError(
            f"model {model}: load_format {given} would read {copies[0]} as well as {SINGLE}, since no "
            f"{INDEX} says which one counts; leave load_format out: dray then reads {SINGLE} alone"
        )
    return {}


def _second_copies(names: set[str]) -> list[str]:
    """The safetensors files that a loader of all would read too; none where there is an index."""
    if INDEX in names:
        return []
    return sorted({name for name in names if name.endswith(".safetensors")} - set(counting(names, None)))
