"""What the files hold that engine arguments name: it is part of the job, and their place is not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.engine.adapter_folder import CONFIG, WEIGHTS
from dray.engine.adapters import ARGUMENT as ADAPTERS

_NAMED = ("chat_template", "generation_config", "hf_config_path", "tokenizer")
"""Arguments that may name a file, or a folder of small files."""

_SMALL = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".spm")
_SMALL_BYTES = 256 << 20  # as of the files of a model's configuration


def with_contents(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with digests in place of the files and folders that they name.

    All else stays as it is: a template's text, a name on the hub, a path of other machines.
    """
    return {name: _content_of(name, value) for name, value in arguments.items()}


def _content_of(name: str, value: Any) -> Any:
    if name == ADAPTERS and isinstance(value, Mapping):
        return {adapter: _adapter(place) for adapter, place in value.items()}
    return _content(value) if name in _NAMED else value


def _adapter(place: Any) -> Any:
    """The two files of a LoRA adapter, whole: two trainings often differ in a few bytes of them alone."""
    folder = Path(str(place)).expanduser()
    files = [folder / name for name in (CONFIG, WEIGHTS)]
    return {file.name: _digest(file) for file in files} if all(file.is_file() for file in files) else place


def _content(value: Any) -> Any:
    try:
        path = Path(str(value)).expanduser()
        if path.is_file():
            return {"sha256": _digest(path)}
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if _is_small(file))
            return {"folder": {file.name: _digest(file) for file in files}}
    except (OSError, ValueError, RuntimeError):  # a text may be no path at all, or in the home of no user
        pass
    return value


def _is_small(file: Path) -> bool:
    return file.name.endswith(_SMALL) and file.is_file() and file.stat().st_size <= _SMALL_BYTES


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
