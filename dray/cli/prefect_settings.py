"""Prefect's settings by the sources that Prefect reads, in its order.

Prefect itself would say them after a second of imports.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.storage.home import home_folder


def prefect_home() -> Path:
    """Prefect's folder of this user.

    Raises:
        ConfigError: this user has no home.
    """
    named = os.environ.get("PREFECT_HOME")
    return home_folder() / ".prefect" if named is None else Path(os.path.expanduser(named))  # noqa: PTH111  raises not


def setting(variable: str, *keys: str) -> str | None:
    """What the environment, a file of the working folder or the active profile says; None where none does.

    ``keys`` lead to it in ``prefect.toml``.
    """
    found = _told(variable, *keys)
    return _of_profile(variable) if found is None else found


def _told(variable: str, *keys: str) -> str | None:
    """A setting of Prefect's by the environment, ``.env``, ``prefect.toml`` or ``pyproject.toml``."""
    if (found := os.environ.get(variable)) is not None:
        return found
    if (found := _dotenv(Path(".env")).get(variable)) is not None:
        return found
    for file, table in (("prefect.toml", ()), ("pyproject.toml", ("tool", "prefect"))):
        value: Any = _toml(Path(file))
        for key in (*table, *keys):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return str(value)
    return None


def _of_profile(variable: str) -> str | None:
    named = _told("PREFECT_PROFILES_PATH", "profiles_path")
    profiles = _toml(Path(named) if named else prefect_home() / "profiles.toml")
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    found = profiles.get("profiles", {}).get(active, {}).get(variable)
    return str(found) if found else None


def _dotenv(file: Path) -> Mapping[str, str | None]:
    if not file.is_file():
        return {}
    from dotenv import dotenv_values  # Prefect requires it

    try:
        return dotenv_values(file)
    except (OSError, UnicodeDecodeError):
        return {}  # Prefect says what is wrong with it


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # Prefect says what is wrong with it
