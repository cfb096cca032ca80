"""The spool: every valid request of a job in JSON lines, one file or parts of it, cut into byte ranges.

A row's *position* is its place in the spool, from 0. Its *index* is its place in the input and its key in
the store; it stands on the row's line. The spool may hold rows in any order.

A line is ``{"i":index,"c":custom_id,"u":url,"b":body,"f":file,"n":line}``: the request, then where it came
from (the file's position in the input from 0, and the line in it from 1).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from socket import gethostname
from typing import Any

import orjson

from dray.errors import JobFailedError
from dray.requests.model import Request
from dray.requests.spool.marks import Mark, Marks, SpoolPart
from dray.storage.files import stream_range
from dray.storage.objects import ObjectStoreOptions

MAX_MARKS = 131_072
"""Places to cut at that are kept per spool, 3 MB; at least half are in use, 4 for each of 16,384 shards."""

_CHUNK_BYTES = 8 << 20
_AGAIN = "`dray resume JOB` or the same command writes them again from the input"
_PLACE = re.compile(rb'"f":(\d+),"n":(\d+)}\n?$')


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
        self._borders = 0
        self._next_border = 0

    def add(self, line: bytes, *, border: bool = True, family: int = 0) -> None:
        """Append one encoded line. At a ``border`` the spool may be cut before it.

        ``family`` is of all lines up to the next border: see :class:`Mark`.
        """
        end = self.offset + len(line)
        if end > self._full_at:
            self._begin_part()
        if border:
            if self._borders == self._next_border:
                self._mark(family)
            self._borders += 1
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

    def _mark(self, family: int) -> None:
        if len(self.marks) >= MAX_MARKS:
            # Every second mark goes: small inputs can be cut anywhere, big ones stay small in memory.
            self.marks = self.marks[::2]
            self._stride *= 2
        if self._borders % self._stride == 0:
            self.marks.add(Mark(self.offset, self.rows, family))
        self._next_border = self._borders + self._stride - self._borders % self._stride


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
            f"{uri}: the job's requests are not there on {gethostname()}: its output folder must be one that "
            f"all stable nodes have at the same path, or an object store. If they are gone, {_AGAIN}"
        ) from error
    if missing:
        raise JobFailedError(f"{uri}: {missing} bytes of the job's requests are missing; {_AGAIN}")


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    begun: list[bytes] = []  # pieces of a line: one of a large image passes many blocks
    for block in blocks:
        first, *lines = block.split(b"\n")
        begun.append(first)
        if lines:
            yield b"".join(begun)
            begun = [lines.pop()]
            yield from lines
    if rest := b"".join(begun):
        yield rest
