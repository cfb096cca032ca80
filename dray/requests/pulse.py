"""Between the thread that reads the input and the one that waits for it: signs of life, and a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dray.errors import CancelledError, InputError, Problem

READ_SECONDS = 3600.0
"""How long an input may give no row: a query may sort for long, and more is a server or a disk that hangs."""


class ReadingPulse:
    """One pass over an input."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._row_at: float | None = time.monotonic()
        self._end_read: Callable[[], None] = lambda: None

    def row(self) -> None:
        """A row is there.

        Raises:
            CancelledError: the thread that waited for the rows wants no more.
        """
        self.heed()
        self._row_at = time.monotonic()

    def heed(self) -> None:
        """Work goes on.

        Raises:
            CancelledError: the thread that waited for it wants no more.
        """
        if self._stopped.is_set():
            raise CancelledError("the input is not read on")

    def end(self) -> None:
        """All rows are there: what follows is writing, which has limits of its own."""
        self._row_at = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In the block the reader waits for a write: no row can come."""
        at, self._row_at = self._row_at, None
        try:
            yield
        finally:
            self._row_at = None if at is None else time.monotonic()

    def stop(self) -> None:
        """Have the reader stop: at its next row, or in what it waits for, where that can be ended."""
        self._stopped.set()
        with suppress(Exception):  # the connection may be gone already
            self._end_read()

    @contextmanager
    def waiting(self, end_read: Callable[[], None]) -> Iterator[None]:
        """In the block, ``end_read``, called from another thread, ends what the reader waits for."""
        self._end_read = end_read
        try:
            yield
        finally:
            self._end_read = lambda: None

    def silent(self) -> float:
        """Seconds since the last row; 0 when there are no more to come."""
        at = self._row_at
        return 0.0 if at is None else time.monotonic() - at

    def refuse_silence(self) -> None:
        """Wait no longer than ``READ_SECONDS`` for a row.

        Raises:
            InputError: it did not come.
        """
        if self.silent() > READ_SECONDS:
            told = f"the input gave no row for {READ_SECONDS:.0f} s; see whether its server or disk answers"
            raise InputError([Problem("input_silent", told)])
