"""Ray's temporary folders on this machine: one for each run, and none left of runs that were killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

_PREFIX = "dray-ray-"
_LOCK = "dray.lock"
_YOUNG = 60.0  # seconds in which a folder may be there and not locked yet


class TemporaryFolder:
    """A folder that is locked for as long as its process lives: an unlocked one has no live process.

    Short names: Ray puts sockets into it, whose paths Linux limits to 107 bytes.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # One level down: Ray opens its own folder, with its sockets and logs, to every user of the machine.
        self.ray = self.path / "r"
        self._lock = (self.path / _LOCK).open("w")  # closed on exec, so Ray's processes do not hold it
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Delete it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep() -> None:
    """Delete the folders of processes that ended without doing so themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _taken(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


def _taken(folder: Path) -> IO[str] | None:
    """The folder's lock, if no process holds it; None for one that is in use, new, or not ours to judge."""
    try:
        if time.time() - folder.stat().st_mtime < _YOUNG:
            return None
        lock = (folder / _LOCK).open("r+")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock
