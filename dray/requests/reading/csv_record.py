"""Where a row of CSV goes on over many lines, and what bounds it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _csv import Reader

    ReaderOf = Callable[[Iterable[str]], Reader]

PASSED_LIMITS = 64
"""How many times the limit a record may have until it ends. One of 1 GiB takes up to two minutes."""


class RecordTooLongError(Exception):
    """A record's lines are together longer than one line may be."""


class EndlessRecordError(Exception):
    """Nothing ends a record within ``PASSED_LIMITS`` times the limit."""


class Record(Iterator[str]):
    """The lines of the record that is being read, of at most ``limit`` characters together.

    Its quotes may be such that no line ends it. Python's ``csv`` would keep all that follow, with about 80
    bytes for each value of two characters.
    """

    def __init__(self, lines: Iterator[str], limit: int) -> None:
        self.number = 0  # of lines taken
        self.last = ""  # the line that was taken last
        self._lines = lines
        self._limit = limit
        self._length = 0

    def __next__(self) -> str:
        """The file's next line; each has its own limit already.

        Raises:
            RecordTooLongError: those since the last end of a record are longer.
        """
        begun = self._length > 0
        line = self._taken()
        if begun and self._length > self._limit:
            raise RecordTooLongError
        return line

    def pass_over(self, reader_of: ReaderOf) -> None:
        """After RecordTooLongError: take the record's other lines, and keep none.

        ``csv`` asks for more lines only within quotes. So each of these lines is a record with a quote before
        it, and leaves the quotes open where ``csv`` takes a second line for it.

        Raises:
            csv.Error: its quotes are wrong, as ``reader_of`` tells, or the file ends within them.
            EndlessRecordError: it goes on for too long.
        """
        while True:
            if '"' in self.last:
                reader = reader_of([f'"{self.last}', '"'])
                next(reader)
                if reader.line_num == 1:
                    return
            if self._length > (most := self._limit * PASSED_LIMITS):
                raise EndlessRecordError(f"no end within {most:,} characters")
            try:
                self._taken()
            except StopIteration:
                raise csv.Error("unexpected end of data") from None

    def end(self) -> None:
        """The next line begins another one."""
        self._length = 0

    def _taken(self) -> str:
        self.last = next(self._lines)
        self.number += 1
        self._length += len(self.last)
        return self.last
