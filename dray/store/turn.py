"""Turns for the processes that write to one SQLite file.

SQLite's own waiting polls at growing intervals, up to 100 ms, so a busy neighbour that comes
back after 2 ms wins nearly always: of eight processes committing without a pause, one got 4
commits in 8 s while another got 148. Waiting here first, at short and equal intervals, gives
everybody a similar share. It decides fairness only: SQLite's locks still decide correctness, so
a turn that cannot be had in time is skipped.
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

_POLL_SECONDS = 0.001


class Turn:
    """A lock beside the database file, ``<file>-turn``, gone when its holder dies."""

    def __init__(self, database: Path, *, patience: float) -> None:
        self._path = database.with_name(f"{database.name}-turn")
        self._patience = patience
        self._thread = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Runs the block in this process's turn, or after ``patience`` seconds without one."""
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
        """Removes the lock's file. Whoever holds it at the time only loses fairness."""
        with suppress(OSError):
            self._path.unlink()

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:  # a read-only folder: let SQLite say what is wrong
            return None

    def _wait(self, file: int) -> None:
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311  jitter, not a secret
            except OSError:  # a file system without such locks
                return
            else:
                return
