"""Turns for the processes that write to one SQLite file.

SQLite's own waiting polls at growing intervals, up to 100 ms, so a busy neighbour that comes
back after 2 ms wins nearly always: of eight processes committing without a pause, one got 4
commits in 8 s while another got 148. Waiting here first, at short and equal intervals, gives
every process a similar share. It decides fairness only: SQLite's locks still decide correctness, so
a turn that cannot be had in time is skipped. Its holder may stand still (a stopped process, a hung
disk): the transactions after that do not wait for it again.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_SECONDS = 2.0
"""How long a transaction waits for its turn; then, for ``SKIP_SECONDS``, the next ones only look."""
SKIP_SECONDS = 30.0
_POLL_SECONDS = 0.001


class Turn:
    """A lock beside the database file, ``<file>-turn``, gone when its holder dies."""

    def __init__(self, database: Path, *, patience: float = PATIENCE_SECONDS) -> None:
        self._path = database.with_name(f"{database.name}-turn")
        self._patience = patience
        self._thread = threading.Lock()
        self._skipped_until = 0.0  # monotonic

    @contextmanager
    def take(self) -> Iterator[None]:
        """Run the block in this process's turn, or after ``patience`` seconds (or none) without one."""
        with self._thread:
            file = self._open()
            try:
                if file is not None:
                    self._wait(file)
                yield
            finally:
                if file is not None:
                    os.close(file)

    def remove(self) -> None:
        """Remove the lock's file. The process that holds the lock then only loses fairness."""
        with suppress(OSError):
            self._path.unlink()

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:  # a read-only folder: let SQLite say what is wrong
            return None

    def _wait(self, file: int) -> None:
        now = time.monotonic()
        deadline = now + (self._patience if now >= self._skipped_until else 0.0)
        while not _locked(file):
            if time.monotonic() >= deadline:
                self._skipped_until = max(self._skipped_until, deadline + SKIP_SECONDS)
                return
            time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311  jitter, not a secret
        self._skipped_until = 0.0


def _locked(file: int) -> bool:
    """Whether the turn is had, or there are no such locks on this file system."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
