"""The engine arguments that follow from the files in a model's folder: which of them an engine reads.

Mistral's repositories hold a model twice: in Hugging Face's format (``config.json``, ``model*.safetensors``)
and in Mistral's own (``params.json``, ``consolidated*.safetensors``), whose weights have other names. vLLM
takes its config from Mistral's files where they are there, whatever the weights are read from: what it finds
no place for, it drops without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dray.engine.argument_policy import format_of
from dray.errors import ConfigError
from dray.weights import Manifest
from dray.weights.source.checkpoint import INDEX, PARAMS, SINGLE, counting, is_native
from dray.weights.source.modules import names_in

# vLLM's formats that read every safetensors file of a folder without an index, also a second copy.
_READ_ALL = frozenset({"safetensors", "fastsafetensors", "instanttensor", "runai_streamer"})


def formats_of(model: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that the files of a local folder ask for, and that the user did not name.

    ``arguments`` are the user's. Empty where ``model`` is no local folder, or an empty one.

    Raises:
        ConfigError: the engine would read other files than the user's arguments say, or more.
    """
    names = names_in(Path(model))
    if not names:
        return {}
    load, config = _named("load_format", arguments), _named("config_format", arguments)
    if not any(map(is_native, names)) and "mistral" in (load, config if load is None else None):
        name = "load_format" if load else "config_format"
        raise ConfigError(
            f"model {model}: {name} mistral reads consolidated*.safetensors, and there is none in it; "
            f"leave {name} out"
        )
    copies = _second_copies(names)
    if load in _READ_ALL and copies:
        raise ConfigError(
            f"model {model}: load_format {load} would read {copies[0]} as well as {SINGLE}, since no "
            f"{INDEX} says which one counts; leave load_format out: dray then reads {SINGLE} alone"
        )
    found: dict[str, str] = {}
    if load is None:
        if _is_mistrals(names, config):
            found["load_format"] = load = "mistral"
        elif copies:  # vLLM's own would load them, too, and the last file would win
            found["load_format"] = "dray"
    if config is None and load != "mistral" and _looks_native(Path(model), names):
        found["config_format"] = "hf"
    return found


def tokenizer_of(manifest: Manifest | None, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The tokenizer that vLLM takes of a whole repository that holds both formats: Mistral's own.

    vLLM knows such a repository by ``consolidated*``, of which dray fetches none. Empty for another model,
    and where the user names a tokenizer. ``manifest`` is None for a local folder, where vLLM sees the files.
    """
    if manifest is None or not manifest.leaves_mistrals:
        return {}
    named = arguments.get("tokenizer") or _named("tokenizer_mode", arguments)
    return {} if named else {"tokenizer_mode": "mistral"}


def refuse_left_out(manifest: Manifest, arguments: Mapping[str, Any]) -> None:
    """Refuse Mistral's own format for a model at an address of which dray fetches Hugging Face's files.

    Raises:
        ConfigError: names the argument, and what to do.
    """
    load, config = _named("load_format", arguments), _named("config_format", arguments)
    if load == "dummy" or any(is_native(file.name) for file in manifest.files):
        return
    for name, given in (("load_format", load), ("config_format", config)):
        if given == "mistral":
            raise ConfigError(
                f"model {manifest.uri}: {name} mistral reads consolidated*.safetensors, and dray fetches "
                f"none of a model that has Hugging Face's files; leave {name} out, or copy the model into a "
                "folder on every node and name that"
            )


def _named(name: str, arguments: Mapping[str, Any]) -> str | None:
    """What the user chose; ``auto`` leaves the choice to others."""
    given = format_of(name, arguments)
    return None if given in ("auto", "") else given


def _second_copies(names: Collection[str]) -> list[str]:
    """The safetensors files that a loader of all would read too; none where there is an index."""
    if INDEX in names:
        return []
    return sorted({name for name in names if name.endswith(".safetensors")} - set(counting(names, None)))


def _is_mistrals(names: Collection[str], config: str | None) -> bool:
    """Whether the weights are in Mistral's format: nothing else is there, or the user takes its config."""
    if not any(map(is_native, names)) or config not in (None, "mistral"):
        return False
    return config is not None or (PARAMS in names and not _has_usual(names))


def _looks_native(folder: Path, names: Collection[str]) -> bool:
    """Whether vLLM would take Mistral's config for weights in Hugging Face's format.

    It looks for ``consolidated*`` below the folder, too (vLLM 0.32, ``transformers_utils/repo_utils.py``).
    """
    if PARAMS not in names or not _has_usual(names):
        return False
    return any(map(is_native, names)) or next(folder.rglob("consolidated*.safetensors"), None) is not None


def _has_usual(names: Collection[str]) -> bool:
    return INDEX in names or SINGLE in names
