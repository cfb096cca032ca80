"""The spool: every valid request of a job in JSON lines, one file or parts of it, cut into byte ranges.

A row's *position* is its place in the spool, from 0. Its *index* is its place in the input and its key in
the store; it stands on the row's line. The spool may hold rows in any order.

A line is ``{"i":index,"c":custom_id,"u":url,"b":body,"f":file,"n":line}``: the request, then where it came
from (the file's position in the input from 0, and the line in it from 1).
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import orjson

from dray.errors import JobFailedError
from dray.requests.model import Request
from dray.storage.files import stream_range
from dray.storage.objects import ObjectStoreOptions

MAX_MARKS = 131_072
"""Places to cut at that are kept per spool, 2 MB; at least half are in use, 4 for each of 16,384 shards."""

_CHUNK_BYTES = 8 << 20
_PLACE = re.compile(rb'"f":(\d+),"n":(\d+)}\n?$')


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoolRange:
    """``rows`` requests in the bytes ``[offset, offset + length)``, at positions from ``first_position``."""

    number: int
    uri: str
    offset: int
    length: int
    rows: int
    first_position: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A place to cut at: the line that starts at ``offset`` is at ``position``. Both count over all parts."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class SpoolPart:
    """One file of a spool: ``size`` bytes of whole lines, which ``start`` tells the first of."""

    uri: str
    size: int
    start: Mark


class Marks(Sequence[Mark]):
    """Marks in the order of the spool, in 16 bytes each."""

    def __init__(self, offsets: array[int] | None = None, positions: array[int] | None = None) -> None:
        self._offsets = array("q") if offsets is None else offsets
        self._positions = array("q") if positions is None else positions

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Mark: ...
    @overload
    def __getitem__(self, place: slice) -> Marks: ...
    def __getitem__(self, place: int | slice) -> Mark | Marks:
        if isinstance(place, slice):
            return Marks(self._offsets[place], self._positions[place])
        return Mark(self._offsets[place], self._positions[place])

    def add(self, mark: Mark) -> None:
        """Append one."""
        self._offsets.append(mark.offset)
        self._positions.append(mark.position)


def encode_line(
    index: int, custom_id: str, url: str, body: dict[str, Any], file_no: int, line_no: int
) -> bytes:
    """A request as a line of the spool, line end included."""
    return orjson.dumps(
        {"i": index, "c": custom_id, "u": url, "b": body, "f": file_no, "n": line_no},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def encode(request: Request, *, file_no: int = 0, line_no: int = 0) -> bytes:
    """``request`` as a line of the spool."""
    return encode_line(request.index, request.custom_id, request.url, request.body, file_no, line_no)


def decode(line: bytes) -> Request:
    """The request on a line of the spool."""
    row = orjson.loads(line)
    return Request(index=row["i"], custom_id=row["c"], url=row["u"], body=row["b"])


def index_of(line: bytes) -> int:
    """The index on a line of the spool, without reading the rest of it."""
    return int(line[5 : line.index(b",", 5)])


def place_of(line: bytes) -> tuple[int, int]:
    """(file, line) that a line of the spool came from, without reading the rest of it."""
    found = _PLACE.search(line, max(0, len(line) - 64))
    assert found is not None, "every line of a spool ends with its place"
    return int(found[1]), int(found[2])


def read_shard(
    uri: str, offset: int, length: int, *, chunk_rows: int = 256, options: ObjectStoreOptions | None = None
) -> Iterator[list[bytes]]:
    """The lines of a byte range, without line ends, up to ``chunk_rows`` (or 8 MiB) at a time.

    JobFailedError where the spool is gone or cut short: rows would be lost unseen.
    """
    chunk: list[bytes] = []
    size = 0
    for line in _lines(_whole(uri, offset, length, options)):
        chunk.append(line)
        size += len(line)
        if len(chunk) >= chunk_rows or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class SpoolWriter:
    """Writes lines, remembers where to cut, and says when a part is full.

    A part has ``part_bytes`` at most, as long as a line is not longer. ``next_part`` begins the next one, and
    returns what writes to it. ``starts`` has the first line of each.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        part_bytes: int = sys.maxsize,
        next_part: Callable[[], Callable[[bytes], object]] | None = None,
    ) -> None:
        self.offset = 0
        self.rows = 0
        self.marks = Marks()
        self.starts = Marks()
        self.starts.add(Mark(0, 0))
        self._write = write
        self._next_part = next_part
        self._part_bytes = part_bytes
        self._full_at = part_bytes
        self._stride = 1
        self._next_mark = 0

    def add(self, line: bytes) -> None:
        """Append one encoded line."""
        end = self.offset + len(line)
        if end > self._full_at:
            self._begin_part()
        if self.rows == self._next_mark:
            self._mark()
        self._write(line)
        self.offset = end
        self.rows += 1

    def _begin_part(self) -> None:
        """The next part, unless this one is empty: a line that is longer than a part has one to itself."""
        assert self._next_part is not None, "a bound needs further parts"
        if self.offset > self.starts[-1].offset:
            self._write = self._next_part()
            self.starts.add(Mark(self.offset, self.rows))
        self._full_at = self.offset + self._part_bytes

    def _mark(self) -> None:
        if len(self.marks) >= MAX_MARKS:
            # Every second mark goes: small inputs can be cut anywhere, big ones stay small in memory.
            self.marks = self.marks[::2]
            self._stride *= 2
        if self.rows % self._stride == 0:
            self.marks.add(Mark(self.offset, self.rows))
        self._next_mark = self.rows + self._stride - self.rows % self._stride


def cut_marks(
    marks: Sequence[Mark], *, parts: Sequence[SpoolPart], rows: int, ranges: int
) -> list[SpoolRange]:
    """Up to ``ranges`` contiguous ranges of about equal rows that cover the spool exactly once.

    A range that would go over the end of a part is cut in two there.
    """
    if not rows:
        return []
    ranges = max(1, min(ranges, len(marks)))
    # Marks are evenly spaced in rows, so even steps through them are even steps through the rows.
    begins = {marks[len(marks) * number // ranges] for number in range(ranges)}
    starts = sorted(begins | {part.start for part in parts}, key=lambda mark: mark.offset)
    ends = [*starts[1:], Mark(parts[-1].start.offset + parts[-1].size, rows)]
    places = [part.start.offset for part in parts]
    return [
        _range_in(parts[bisect_right(places, start.offset) - 1], number, start, end)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _range_in(part: SpoolPart, number: int, start: Mark, end: Mark) -> SpoolRange:
    return SpoolRange(
        number=number,
        uri=part.uri,
        offset=start.offset - part.start.offset,
        length=end.offset - start.offset,
        rows=end.position - start.position,
        first_position=start.position,
    )


def lines_of(part: SpoolPart, options: ObjectStoreOptions | None = None) -> Iterator[bytes]:
    """All lines of a part, without line ends.

    Raises:
        JobFailedError: it is gone or cut short.
    """
    return _lines(_whole(part.uri, 0, part.size, options))


def _whole(uri: str, offset: int, length: int, options: ObjectStoreOptions | None) -> Iterator[bytes]:
    missing = length
    try:
        for block in stream_range(uri, offset, length, options=options):
            missing -= len(block)
            yield block
    except FileNotFoundError as error:
        raise JobFailedError(
            f"{uri}: the job's requests are gone; start the job anew, under a new id"
        ) from error
    if missing:
        raise JobFailedError(f"{uri}: {missing} bytes of the job's requests are missing; start the job anew")


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        parts = block.split(b"\n")
        parts[0] = rest + parts[0]
        rest = parts.pop()
        yield from parts
    if rest:
        yield rest
