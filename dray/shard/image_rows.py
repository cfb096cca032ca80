"""Rows with the images that they name, on their way from the spool to a replica.

Some images are read ahead, side by side, so that a replica seldom waits for a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import orjson

from dray.requests.images import NAMED, PART, ROW_LIMIT_BYTES, data_url, is_image, parts_of
from dray.requests.model import Outcome, Request
from dray.requests.spool import decode, encode, place_of
from dray.shard.image_files import ImageFiles, NoImageError
from dray.shard.open_rows import OpenLines
from dray.storage.files import stream_range
from dray.storage.objects import ObjectStoreOptions

READERS = 16
"""Images that one shard task reads side by side."""

_IMAGES_AHEAD = 32
_BYTES_AHEAD = 128 << 20
_LOOKED_AT, _LOOKED_AT_BYTES = 8, 1 << 18
_PIECE_ROWS = 32
_PIECE_BYTES = 16 << 20  # of rows with their images that go to a replica in one call


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the spool, the position after it, and where its images are and go."""

    line: bytes
    end: int
    request: Request | None  # None where it names no image
    parts: list[dict[str, dict[str, str]]]
    images: list[Future[bytes]]


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


def with_image_files(
    chunks: Iterator[OpenLines],
    root: str | None,
    options: ObjectStoreOptions | None = None,
    check: Callable[[], None] = lambda: None,
    others: Callable[[], Sequence[str]] = tuple,
) -> Iterator[OpenLines]:
    """The same rows in their order, with the images that they name; in smaller pieces.

    A row whose image is not there, or too large, is among the ``refused`` of its piece. ``root`` is where the
    job's images lie, None where its rows name none. ``check`` is called while an image is waited for, and may
    raise; ``others`` gives some images of the job, to see whether any can be read.

    Raises:
        OSError: the store of images, or their folder, cannot be read just now, or not from this node; its
            ``filename2`` is ``root``.
    """
    if root is None:
        yield from chunks
        return
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="dray-images")
    try:
        files = ImageFiles(root, pool, options, check, others)
        yield from _pieces(_read_ahead(chunks, files), files)
    finally:  # a store that hangs is not waited for
        pool.shutdown(wait=False, cancel_futures=True)


def _read_ahead(chunks: Iterator[OpenLines], files: ImageFiles) -> Iterator[_Row]:
    """Rows in their order, whose images and those of the next rows are on their way."""
    ahead: deque[_Row] = deque()
    for chunk in chunks:
        for line, end in zip(chunk.lines, chunk.ends, strict=True):
            while ahead and _is_enough(ahead, files.typical):
                yield ahead.popleft()
            ahead.append(_row(line, end, files))
    yield from ahead


def _row(line: bytes, end: int, files: ImageFiles) -> _Row:
    """A row, of whose images the first ones are asked for: all of them might be too many to hold."""
    request = decode(line) if NAMED.search(line) else None
    if request is None:
        return _Row(line, end, None, [], [])
    found = (content[place] for _, content, place in parts_of(request.body.get("messages")))
    parts = [part for part in found if is_image(part) and files.names(part[PART].get("url"))]
    return _Row(line, end, request, parts, [files.ask(part[PART]["url"]) for part in parts[:READERS]])


def _is_enough(ahead: Collection[_Row], typical: int) -> bool:
    """Whether as many rows and bytes are ahead as there may be; an image on its way is a typical one."""
    images = [image for row in ahead for image in row.images]
    if len(ahead) >= _PIECE_ROWS or len(images) >= _IMAGES_AHEAD:
        return True
    return sum(_size(image, typical) for image in images) >= _BYTES_AHEAD


def _size(image: Future[bytes], typical: int) -> int:
    if not image.done():
        return typical
    return 0 if image.exception() else len(image.result())


def _pieces(rows: Iterator[_Row], files: ImageFiles) -> Iterator[OpenLines]:
    piece = _Piece()
    for row in rows:
        piece.ends.append(row.end)
        try:
            line = _filled(row, files)
        except NoImageError as verdict:
            piece.refused.append(decode(row.line).refused(verdict.code, verdict.message))
        else:
            piece.lines.append(line)
            piece.size += len(line)
        if piece.full:
            yield piece.open_lines()
            piece = _Piece()
    if piece.ends:
        yield piece.open_lines()


def _filled(row: _Row, files: ImageFiles) -> bytes:
    """The line with its images in it."""
    if row.request is None or not row.parts:
        return row.line
    size = 0
    for number, part in enumerate(row.parts):
        uri = part[PART]["url"]
        image = files.result(row.images[number] if number < len(row.images) else files.ask(uri))
        size += len(image)
        if size > ROW_LIMIT_BYTES:
            raise NoImageError("request_too_large", f"the row's images have over {ROW_LIMIT_BYTES:,} bytes")
        part[PART] = {"url": data_url(image)}
    file_no, line_no = place_of(row.line)
    return encode(row.request, file_no=file_no, line_no=line_no)


def images_named_in(uri: str, options: ObjectStoreOptions | None = None) -> list[str]:
    """Some images that the first rows of a part of the spool name."""
    begin = b"".join(stream_range(uri, 0, _LOOKED_AT_BYTES, options=options))
    found = [str(orjson.loads(name)) for name in islice(NAMED.findall(begin), _LOOKED_AT)]
    return list(dict.fromkeys(found))
