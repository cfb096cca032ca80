"""Where a row of CSV goes on over many lines, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterator


class RecordTooLongError(Exception):
    """A record's lines are together longer than one line may be."""


class Record:
    """The lines of the record that is being read, of at most ``limit`` characters together.

    Its quotes may be such that no line ends it. Python's ``csv`` would keep all that follow, with about 80
    bytes for each value of two characters.
    """

    def __init__(self, lines: Iterator[str], limit: int) -> None:
        self.last = ""  # the line that was taken last
        self._lines = lines
        self._limit = limit
        self._length = 0

    def lines(self) -> Iterator[str]:
        """The file's lines; each has its own limit already.

        Raises:
            RecordTooLongError: those since the last end of a record are longer.
        """
        for line in self._lines:
            if self._length and self._length + len(line) > self._limit:
                raise RecordTooLongError
            self._length += len(line)
            self.last = line
            yield line

    def end(self) -> None:
        """The next line begins another one."""
        self._length = 0
