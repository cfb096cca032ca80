"""Exports into one folder know no predecessors: each has a lock, and clears what killed ones left.

An export holds its lock until it ends. So its drafts need no lock of their own, and are closed once they are
complete: an export of many parts has all of them by its end.
"""

from __future__ import annotations

import fcntl
import glob
from pathlib import Path

from dray.storage.files import clear_abandoned, open_locked, open_to_lock, writing


class ExportLock:
    """Says of the drafts with this ``tag`` that their export lives."""

    def __init__(self, folder: Path, tag: str) -> None:
        self._path = _lock_of(folder, tag)
        with writing(str(self._path)):
            folder.mkdir(parents=True, exist_ok=True)
            _clear(folder)
            self._file = open_locked(self._path)

    def close(self) -> None:
        """The export is over, and its drafts are gone."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def _lock_of(folder: Path, tag: str) -> Path:
    return folder / f"export-{tag}.lock"


def _clear(folder: Path) -> None:
    """Remove the drafts and locks of exports that were killed."""
    for draft in folder.glob("*-x*.part"):
        tag = draft.name.partition(".")[0].rpartition("-")[2]
        if not _is_held(_lock_of(folder, tag)):
            clear_abandoned(folder, glob.escape(draft.name))  # one of an earlier version has a lock itself
    clear_abandoned(folder, "export-x*.lock")


def _is_held(lock: Path) -> bool:
    """Whether a process may hold it: also where the file system cannot say."""
    try:
        with open_to_lock(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
