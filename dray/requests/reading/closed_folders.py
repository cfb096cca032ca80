"""Folders that a pattern looks into, and that cannot be read: ``glob`` passes over them, and their rows."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from dray.storage.files import refused

_OF_THE_SYSTEM = "lost+found"  # at the top of a disk: it holds no user's files


def existing_above(path: Path) -> Path:
    """The last folder of a pattern that is there by its name, whatever signs that holds."""
    return next((folder for folder in path.parents if folder.is_dir()), path.parents[-1])


def refuse_closed(path: Path) -> None:
    """Refuse a pattern with a folder in its way that cannot be read.

    Raises:
        InputError: names the folder.
    """
    there = existing_above(path)
    parts = path.relative_to(there).parts
    for place, part in enumerate(parts):
        if place and parts[place - 1] == "**":
            continue  # all folders that this part may be in were looked at
        above = "/".join([glob.escape(str(there)), *parts[:place], ""])
        for folder in glob.iglob(above, recursive=True):  # noqa: PTH207  takes absolute patterns
            _look(folder, part)


def _look(folder: str, part: str) -> None:
    """Look for a part of a pattern as ``glob`` does, but for the errors that it keeps."""
    if part == "**":
        for found, names, _ in os.walk(folder, onerror=lambda error: _refuse(str(error.filename), error)):
            names[:] = [name for name in names if not name.startswith(".")]
            for name in names:
                if os.path.islink(link := f"{found}/{name}"):  # noqa: PTH114  os.walk does not enter it
                    _look(link, "*")
        return
    try:
        if glob.has_magic(part):
            with os.scandir(folder) as entries:
                next(entries, None)
        else:
            (Path(folder) / part).lstat()
    except OSError as error:
        _refuse(folder, error)


def _refuse(folder: str, error: OSError) -> None:
    path = Path(folder)
    if isinstance(error, FileNotFoundError | NotADirectoryError) or path.name == _OF_THE_SYSTEM:
        return
    told = (
        f"the pattern looks into this folder, which cannot be read ({error.strerror or error}), so its rows "
        "would be missing; have it opened to this account, or name the other folders"
    )
    raise refused("unreadable_input", told, str(path)) from error
