"""Rows on their way to the spool, in an order that a planner chooses: one window of the input at a time.

A window's lines lie in a file without a name until they have their order. So memory does not grow with the
rows, and a process that is killed leaves nothing of it. Rows with a common prefix that are in different
windows do not come together.
"""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from dray.errors import JobFailedError, JobPausedError
from dray.requests.pulse import ReadingPulse
from dray.requests.spool.parts import SpoolParts
from dray.storage.files import is_full, local_path
from dray.storage.objects import is_object
from dray.triggers import Point, reach

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW_ROWS = 1 << 21
"""Rows of a window: the planner takes up to 300 bytes of memory for each."""
WINDOW_BYTES = 4 << 30
"""Bytes of a window. They lie beside the spool, or in ``TMPDIR`` where the spool goes to an object store."""

TOLD_ROWS = 200_000
"""Rows of a window whose ordering takes long enough to be told of."""

_HELD_BYTES = 64 << 20  # of a window
_AROUND_BYTES = 64 << 10  # that Linux maps with each page that is read (fault_around_bytes)
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrangement:
    """An order of some lines: ``rows`` has the number of the line at each position, from 0.

    ``starts`` are the positions where groups begin; a group stays whole. ``families`` names, for each group,
    the prefix that it shares with other groups; 0 for none.
    """

    rows: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    families: NDArray[np.int64]


Arrange = Callable[[Iterable[bytes]], Arrangement | None]
"""Gives the order of some lines of a spool, and the same one every time; None to leave them as they are.

The lines can be read more than once.
"""


class Arranging:
    """Lines on their way into a spool. Give each to ``add_line``, and call ``flush`` after the last one.

    Without ``arrange``, they go there at once. ``say`` hears when many rows are put in order.
    """

    def __init__(
        self,
        spool: SpoolParts,
        uri: str,
        arrange: Arrange | None,
        pulse: ReadingPulse,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._spool = spool
        self._folder = None if is_object(uri) else local_path(uri).parent
        self._arrange = arrange
        self.add_line: Callable[[bytes], None] = self._add if arrange else spool.writer.add
        self._pulse = pulse
        self._say = say
        self._file: IO[bytes] | None = None
        self._ends = array("q")  # of each line of the window
        self._size = 0

    def _add(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        self._size += len(line)
        self._ends.append(self._size)
        try:
            self._file.write(line)
        except OSError as error:
            raise self._full(error) from error
        if len(self._ends) >= WINDOW_ROWS or self._size >= WINDOW_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put the rows of the window into the spool, in their order.

        Raises:
            CancelledError: the thread that waits for the rows wants no more.
            JobFailedError: there is no room for them.
        """
        if self._file is None or self._arrange is None:
            return
        try:
            self._file.flush()
            if self._say is not None and len(self._ends) >= TOLD_ROWS:
                self._say(f"ordering {len(self._ends):,} rows by their prefixes")
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                found = self._arrange(_Lines(view, self._ends, self._pulse))
                reach(Point.INGEST_ARRANGED)
                self._write(view, found)
        except OSError as error:
            raise self._full(error) from error
        finally:
            with suppress(OSError):  # what a full disk did not take: the error that says so is on its way
                self._file.close()
            self._file, self._ends, self._size = None, array("q"), 0

    def __enter__(self) -> Arranging:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:  # what is not in the spool by then is wanted no more
            with suppress(OSError):
                self._file.close()

    def _opened(self) -> IO[bytes]:
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=self._folder, buffering=1 << 20)
        except OSError as error:
            raise self._full(error) from error

    def _write(self, view: mmap.mmap, found: Arrangement | None) -> None:
        add, pages = self._spool.writer.add, _Pages(view)
        if found is None:
            begin = 0
            for end in self._ends:
                add(view[begin:end])
                pages.read(end - begin)
                begin = end
            return
        self._spool.grouped = True
        for row, border, family in _placed(found):
            begin, end = self._ends[row - 1] if row else 0, self._ends[row]
            add(view[begin:end], border=border, family=family)
            pages.read(end - begin + _AROUND_BYTES)

    def _full(self, error: OSError) -> JobFailedError:
        place = self._folder or tempfile.gettempdir()
        told = (
            f"{place}: rows cannot be put in order there ({error.strerror}); make room, or give --order input"
        )
        if is_full(error):
            return JobPausedError(f"{told}; with room, `dray resume JOB` or the same command goes on")
        return JobFailedError(told)


class _Lines:
    """The lines of a window in the order of the input, without line ends."""

    def __init__(self, view: mmap.mmap, ends: array[int], pulse: ReadingPulse) -> None:
        self._view = view
        self._ends = ends
        self._pulse = pulse

    def __iter__(self) -> Iterator[bytes]:
        begin, pages = 0, _Pages(self._view)
        for end in self._ends:
            self._pulse.heed()
            yield self._view[begin : end - 1]
            pages.read(end - begin)
            begin = end


class _Pages:
    """Keeps a mapped window out of this process's memory but for what it read last: a gigabyte else."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._held = 0

    def read(self, size: int) -> None:
        """Count bytes that were read. The system keeps pages that are given back as long as it can."""
        self._held += size
        if self._held >= _HELD_BYTES:
            self._view.madvise(mmap.MADV_DONTNEED)
            self._held = 0


def _placed(found: Arrangement) -> Iterator[tuple[int, bool, int]]:
    """(line, whether a group begins with it, family) by position."""
    import numpy as np

    borders = np.zeros(len(found.rows), np.bool_)
    borders[found.starts] = True
    families = np.zeros(len(found.rows), np.int64)
    families[found.starts] = found.families
    for begin in range(0, len(borders), _CHUNK_ROWS):
        chunk = slice(begin, begin + _CHUNK_ROWS)
        yield from zip(
            found.rows[chunk].tolist(), borders[chunk].tolist(), families[chunk].tolist(), strict=True
        )
