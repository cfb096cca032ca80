"""Rows with the images, sounds and videos that they name, on their way from the spool to a replica.

Some files are read ahead, side by side, so that a replica seldom waits for a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import orjson

from dray.requests.media.medium import MEDIA, NAMED, Medium, Roots, data_url
from dray.requests.media.parts import ROW_LIMIT_BYTES
from dray.requests.media.placing import Held, media_in
from dray.requests.model import Outcome, Request
from dray.requests.spool.spool import decode, encode, place_of
from dray.shard.media_files import MediaFiles, NoFileError
from dray.shard.open_rows import OpenLines
from dray.storage.files import stream_range
from dray.storage.objects import ObjectStoreOptions

Files = Mapping[Medium, MediaFiles]

READERS = 16
"""Files that one shard task reads side by side."""

_FILES_AHEAD = 32
_BYTES_AHEAD = 128 << 20
_LOOKED_AT, _LOOKED_AT_BYTES = 8, 1 << 18
_PIECE_ROWS = 32
_PIECE_BYTES = 16 << 20  # of rows with their files that go to a replica in one call


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the spool, the position after it, and where its files are and go."""

    line: bytes
    end: int
    request: Request | None  # None where it names no file
    held: list[Held]
    files: list[Future[bytes]]


@dataclass(slots=True)
class _Piece:
    """Rows that go to the replica together."""

    lines: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    refused: list[Outcome] = field(default_factory=list)
    size: int = 0

    @property
    def full(self) -> bool:
        return self.size >= _PIECE_BYTES or len(self.ends) >= _PIECE_ROWS

    def open_lines(self) -> OpenLines:
        return OpenLines(self.lines, self.ends, self.refused)


def with_media_files(
    chunks: Iterator[OpenLines],
    roots: Roots,
    options: ObjectStoreOptions | None = None,
    check: Callable[[], None] = lambda: None,
    others: Callable[[], Sequence[str]] = tuple,
) -> Iterator[OpenLines]:
    """The same rows in their order, with the files that they name; in smaller pieces.

    A row whose file is not there, or too large, is among the ``refused`` of its piece. ``roots`` say where
    the job's files lie; none where its rows name none. ``check`` is called while a file is waited for, and
    may raise; ``others`` gives some files of the job, to see whether any can be read.

    Raises:
        OSError: the store of files, or their folder, cannot be read just now, or not from this node; its
            ``filename2`` is the root.
    """
    if not roots:
        yield from chunks
        return
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="dray-media")
    try:
        files = {
            medium: MediaFiles(medium, roots[medium.root], pool, options, check, others)
            for medium in MEDIA
            if medium.root in roots
        }
        yield from _pieces(_read_ahead(chunks, files), files)
    finally:  # a store that hangs is not waited for
        pool.shutdown(wait=False, cancel_futures=True)


def _read_ahead(chunks: Iterator[OpenLines], files: Files) -> Iterator[_Row]:
    """Rows in their order, whose files and those of the next rows are on their way."""
    ahead: deque[_Row] = deque()
    for chunk in chunks:
        typical = max(one.typical for one in files.values())
        for line, end in zip(chunk.lines, chunk.ends, strict=True):
            while ahead and _is_enough(ahead, typical):
                yield ahead.popleft()
            ahead.append(_row(line, end, files))
    yield from ahead


def _row(line: bytes, end: int, files: Files) -> _Row:
    """A row, of whose files the first ones are asked for: all of them might be too many to hold."""
    request = decode(line) if NAMED.search(line) else None
    if request is None:
        return _Row(line, end, None, [], [])
    held = [
        one
        for one in media_in(request.url, request.body)
        if one.medium in files and files[one.medium].names(one.holder.get(one.name))
    ]
    return _Row(line, end, request, held, [_asked(one, files) for one in held[:READERS]])


def _asked(held: Held, files: Files) -> Future[bytes]:
    return files[held.medium].ask(held.holder[held.name])


def _is_enough(ahead: Collection[_Row], typical: int) -> bool:
    """Whether as many rows and bytes are ahead as there may be; a file on its way is a typical one."""
    files = [file for row in ahead for file in row.files]
    if len(ahead) >= _PIECE_ROWS or len(files) >= _FILES_AHEAD:
        return True
    return sum(_size(file, typical) for file in files) >= _BYTES_AHEAD


def _size(file: Future[bytes], typical: int) -> int:
    if not file.done():
        return typical
    return 0 if file.exception() else len(file.result())


def _pieces(rows: Iterator[_Row], files: Files) -> Iterator[OpenLines]:
    piece = _Piece()
    for row in rows:
        piece.ends.append(row.end)
        try:
            line = _filled(row, files)
        except NoFileError as verdict:
            piece.refused.append(decode(row.line).refused(verdict.code, verdict.message))
        else:
            piece.lines.append(line)
            piece.size += len(line)
        if piece.full:
            yield piece.open_lines()
            piece = _Piece()
    if piece.ends:
        yield piece.open_lines()


def _filled(row: _Row, files: Files) -> bytes:
    """The line with its files in it."""
    if row.request is None or not row.held:
        return row.line
    size = 0
    for number, held in enumerate(row.held):
        asked = row.files[number] if number < len(row.files) else _asked(held, files)
        content = files[held.medium].result(asked)
        size += len(content)
        if size > ROW_LIMIT_BYTES:
            names = dict.fromkeys(f"{one.medium.name}s" for one in row.held)
            told = f"the row's {' and '.join(names)} have over {ROW_LIMIT_BYTES:,} bytes"
            raise NoFileError("request_too_large", told)
        held.holder[held.name] = data_url(content)
    file_no, line_no = place_of(row.line)
    return encode(row.request, file_no=file_no, line_no=line_no)


def files_named_in(uri: str, options: ObjectStoreOptions | None = None) -> list[str]:
    """Some files that the first rows of a part of the spool name."""
    begin = b"".join(stream_range(uri, 0, _LOOKED_AT_BYTES, options=options))
    found = [str(orjson.loads(name)) for name in islice(NAMED.findall(begin), _LOOKED_AT)]
    return list(dict.fromkeys(found))
