"""What the files hold that engine arguments name: it is part of the job, and their place is not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAMED = ("chat_template", "generation_config", "hf_config_path", "tokenizer")
"""Arguments that may name a file, or a folder of small files."""

_SMALL = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".spm")
_SMALL_BYTES = 256 << 20  # as of the files of a model's configuration


def with_contents(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with digests in place of the files and folders that they name.

    All else stays as it is: a template's text, a name on the hub, a path of other machines.
    """
    return {name: _content(value) if name in _NAMED else value for name, value in arguments.items()}


def _content(value: Any) -> Any:
    try:
        path = Path(str(value)).expanduser()
        if path.is_file():
            return {"sha256": _digest(path)}
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if _is_small(file))
            return {"folder": {file.name: _digest(file) for file in files}}
    except (OSError, ValueError):  # a text may be no path at all
        pass
    return value


def _is_small(file: Path) -> bool:
    return file.name.endswith(_SMALL) and file.is_file() and file.stat().st_size <= _SMALL_BYTES


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
