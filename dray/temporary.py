"""Temporary folders of this process, and locks of this machine.

No folder is left for long when its process is killed.

A killed process removes nothing, and what an upload holds may be 16 GiB. The next process that makes a folder
with the same prefix removes those whose processes are gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO

_LOCK = "dray.lock"
_SHARED = Path("/dev/shm")  # noqa: S108  for empty files: one folder for all processes, and cleared at a boot
_YOUNG = 60.0  # seconds in which a folder may be there and not locked yet


class TemporaryFolder:
    """A folder that is locked for as long as its process lives: an unlocked one has no live process.

    ``prefix`` begins its name, which ends with eight characters. It lies in ``base``, or where temporary
    files are. It is removed when the block ends, or the object, or the process.
    """

    def __init__(self, prefix: str, base: Path | None = None) -> None:
        sweep(prefix, base)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        lock = (self.path / _LOCK).open("w")  # closed on exec: no process that this one starts holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Delete it with all that is in it; a second call does nothing."""
        self._remove()


def lock_file(name: str) -> Path:
    """Where all processes of this user on this machine find one lock, whatever ``TMPDIR`` each has."""
    folder = _SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"dray-{os.getuid()}-{name}.lock"


def open_lock(path: Path) -> int:
    """The descriptor of such a file, made where it is not there; closed on exec.

    Raises:
        OSError: it cannot be made, or is not a file of this user alone: another user made one of its name.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "the file is another user's", str(path))
    return descriptor


def sweep(prefix: str, base: Path | None = None) -> None:
    """Delete the folders with this prefix of processes that ended without doing so themselves."""
    for folder in (base or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        lock = _taken(folder)
        if lock is not None:
            _remove(folder, lock)


def _remove(folder: Path, lock: IO[str]) -> None:
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
