"""Where a spool may be cut, and the shards that it is cut into.

A spool in the order of its input may be cut before any row. One in an order of its own may be cut before each
group of rows with a common prefix: such groups stay whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import overload


@dataclass(frozen=True, slots=True)
class Mark:
    """A place to cut at: the line that starts at ``offset`` is at ``position``. Both count over all parts.

    ``family`` names the prefix that all rows up to the next mark share with rows beyond them; 0 for none.
    """

    offset: int
    position: int
    family: int = 0


class Marks(Sequence[Mark]):
    """Marks in the order of the spool, in 24 bytes each."""

    def __init__(
        self,
        offsets: array[int] | None = None,
        positions: array[int] | None = None,
        families: array[int] | None = None,
    ) -> None:
        self._offsets = array("q") if offsets is None else offsets
        self._positions = array("q") if positions is None else positions
        self._families = array("q", bytes(8 * len(self._offsets))) if families is None else families

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Mark: ...
    @overload
    def __getitem__(self, place: slice) -> Marks: ...
    def __getitem__(self, place: int | slice) -> Mark | Marks:
        if isinstance(place, slice):
            return Marks(self._offsets[place], self._positions[place], self._families[place])
        return Mark(self._offsets[place], self._positions[place], self._families[place])

    def add(self, mark: Mark) -> None:
        """Append one."""
        self._offsets.append(mark.offset)
        self._positions.append(mark.position)
        self._families.append(mark.family)


@dataclass(frozen=True, slots=True)
class SpoolPart:
    """One file of a spool: ``size`` bytes of whole lines, which ``start`` tells the first of."""

    uri: str
    size: int
    start: Mark


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoolRange:
    """``rows`` requests in the bytes ``[offset, offset + length)``, at positions from ``first_position``.

    ``family`` names a prefix that all of them share with the rows of other ranges; 0 for none.
    """

    number: int
    uri: str
    offset: int
    length: int
    rows: int
    first_position: int
    family: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Taper:
    """The last ``ranges`` are smaller: a quarter of the others, though of no fewer than ``least_rows`` rows.

    Workers take up the ranges of a job in their order. When none is left, each is at its last one, and the
    longest of these ends the job: the smaller they are, the sooner.
    """

    ranges: int
    least_rows: int = 1

    def share(self, rows: float) -> float:
        """The size of one of the last ranges, as a share of the others', where an even cut has ``rows``."""
        return min(1.0, max(_TAPER, self.least_rows / rows))


_TAPER = 1 / 4
_EVEN = Taper(ranges=0)


def cut_marks(
    marks: Sequence[Mark],
    *,
    parts: Sequence[SpoolPart],
    rows: int,
    ranges: int,
    grouped: bool = False,
    taper: Taper = _EVEN,
) -> list[SpoolRange]:
    """Up to ``ranges`` contiguous ranges of about equal rows that cover the spool exactly once.

    The last ones ``taper``, unless they are more than half of all. A range that would go over the end of a
    part is cut in two there. The marks of a ``grouped`` spool stand between groups of any size: a group that
    is larger than a range has one to itself.
    """
    if not rows:
        return []
    ranges = max(1, min(ranges, len(marks)))
    begins_at = steps(rows, ranges, taper)
    begins = _nearest(marks, rows, begins_at) if grouped else _even(marks, begins_at)
    by_offset = {mark.offset: mark for mark in (*begins, *(part.start for part in parts))}
    starts = [by_offset[offset] for offset in sorted(by_offset)]
    ends = [*starts[1:], Mark(parts[-1].start.offset + parts[-1].size, rows)]
    places = [part.start.offset for part in parts]
    families = _families(marks, starts, rows) if grouped else iter([0] * len(starts))
    return [
        SpoolRange(
            number=number,
            uri=part.uri,
            offset=start.offset - part.start.offset,
            length=end.offset - start.offset,
            rows=end.position - start.position,
            first_position=start.position,
            family=family,
        )
        for number, (start, end, family) in enumerate(zip(starts, ends, families, strict=True))
        for part in [parts[bisect_right(places, start.offset) - 1]]
    ]


def steps(rows: int, ranges: int, taper: Taper) -> list[Fraction]:
    """Where the ranges begin, as shares of all rows."""
    large, share, unit = _sizes(rows, ranges, taper)
    return [(min(number, large) + max(number - large, 0) * share) * unit for number in range(ranges)]


def _sizes(rows: int, ranges: int, taper: Taper) -> tuple[int, Fraction, Fraction]:
    """How many ranges are large, a small one as a share of them, and one of them as a share of all rows."""
    small = taper.ranges if 2 * taper.ranges <= ranges else 0
    share = Fraction(taper.share(rows / ranges)).limit_denominator(1000)
    large = ranges - small
    return large, share, 1 / (large + small * share)


def enough_ranges(rows: int, target: int, least: int, taper: Taper = _EVEN) -> int:
    """How many ranges: each has at most ``target`` rows, and there are ``least`` at least."""
    whole = -(-rows // target)
    ranges = max(whole, least, 1)
    if rows and rows * _sizes(rows, ranges, taper)[2] > target:  # what the last ones lack, the others have
        ranges = max(ranges, whole + ceil(taper.ranges * (1 - taper.share(target))))
    return ranges


def _even(marks: Sequence[Mark], begins_at: Sequence[Fraction]) -> set[Mark]:
    """Steps through the marks, which are evenly spaced in rows: the same steps through the rows."""
    return {marks[int(len(marks) * step)] for step in begins_at}


def _nearest(marks: Sequence[Mark], rows: int, begins_at: Sequence[Fraction]) -> set[Mark]:
    """The marks that are nearest to the steps through the rows."""
    found = {marks[0]}
    for step in begins_at[1:]:
        wanted = int(rows * step)
        after = bisect_left(marks, wanted, key=lambda mark: mark.position)
        close = marks[max(after - 1, 0) : after + 1]
        found.add(min(close, key=lambda mark: abs(mark.position - wanted)))
    return found


def _families(marks: Sequence[Mark], starts: Sequence[Mark], rows: int) -> Iterator[int]:
    """The family of each range: that of all its marks, where they are of one."""
    place, family = 0, 0
    ends = [*(mark.position for mark in starts[1:]), rows]
    for start, end in zip(starts, ends, strict=True):
        there = set()
        if place == len(marks) or marks[place].position > start.position:
            there.add(family)  # a part of the spool may begin between two marks
        while place < len(marks) and marks[place].position < end:
            family = marks[place].family
            there.add(family)
            place += 1
        yield there.pop() if len(there) == 1 else 0
