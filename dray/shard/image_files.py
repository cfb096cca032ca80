"""Images that rows name, read by the shard task and put into the rows on their way to a replica.

Ingest has written the whole place of each into the spool (:mod:`dray.requests.images`). Some rows are read
ahead, side by side, so that a replica seldom waits for a store of objects.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from dray.codes import ErrorCode
from dray.requests.images import IMAGE_LIMIT_BYTES, NAMED, data_url
from dray.requests.model import Outcome
from dray.requests.spool import decode
from dray.shard.open_rows import OpenLines
from dray.storage.files import local_path
from dray.storage.objects import ObjectStoreOptions, is_object, store_of, translated

READERS = 16
"""Images that one shard task reads side by side."""

_ROWS_AHEAD = 32
_PIECE_BYTES = 16 << 20  # of rows with their images that go to a replica in one call
_NO_FILE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


class NoImageError(Exception):
    """An image of a row that is not there, or not to be had: the row's own fault."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the spool, the position after it, and its images on their way."""

    line: bytes
    end: int
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
        return self.size >= _PIECE_BYTES or len(self.ends) >= _ROWS_AHEAD

    def open_lines(self) -> OpenLines:
        return OpenLines(self.lines, self.ends, self.refused)


def with_image_files(
    chunks: Iterator[OpenLines], root: str | None, options: ObjectStoreOptions | None = None
) -> Iterator[OpenLines]:
    """The same rows in their order, with the images that they name; in smaller pieces.

    A row whose image is not there, or too large, is among the ``refused`` of its piece. ``root`` is where the
    job's images lie, None where its rows name none.

    Raises:
        OSError: the store of images, or their folder, cannot be read just now, or not from this node; its
            ``filename2`` is ``root``.
    """
    if root is None:
        yield from chunks
        return
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="dray-images")
    try:
        files = ImageFiles(root, pool, options)
        yield from _pieces(_read_ahead(chunks, files), files)
    finally:  # a store that hangs is not waited for
        pool.shutdown(wait=False, cancel_futures=True)


def _read_ahead(chunks: Iterator[OpenLines], files: ImageFiles) -> Iterator[_Row]:
    """Rows in their order, whose images and those of the next rows are on their way."""
    ahead: deque[_Row] = deque()
    for chunk in chunks:
        for line, end in zip(chunk.lines, chunk.ends, strict=True):
            ahead.append(_Row(line, end, [files.ask(orjson.loads(uri)) for uri in NAMED.findall(line)]))
            if len(ahead) > _ROWS_AHEAD:
                yield ahead.popleft()
    yield from ahead


def _pieces(rows: Iterator[_Row], files: ImageFiles) -> Iterator[OpenLines]:
    piece = _Piece()
    for row in rows:
        piece.ends.append(row.end)
        try:
            line = _filled(row.line, [files.result(image) for image in row.images])
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


def _filled(line: bytes, images: list[bytes]) -> bytes:
    if not images:
        return line
    urls = iter([orjson.dumps(data_url(image)) for image in images])
    return NAMED.sub(lambda _: b'"image_url":{"url":' + next(urls) + b"}", line)


class ImageFiles:
    """The files below a root, read whole by some threads.

    Raises:
        OSError: the root is a folder that is not on this node.
    """

    def __init__(self, root: str, pool: ThreadPoolExecutor, options: ObjectStoreOptions | None) -> None:
        self._pool = pool
        self._options = options
        self._asked: set[Future[bytes]] = set()
        self._known: str | None = None  # an image that could be read
        self._root = root
        if not is_object(root) and not local_path(root).is_dir():
            raise self._marked(OSError(f"{root}: the folder of images is not on this node"))

    def ask(self, uri: str) -> Future[bytes]:
        """Have an image read."""
        asked = self._pool.submit(self._read, uri)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return asked

    def result(self, asked: Future[bytes]) -> bytes:
        """The bytes of an image.

        Stores answer 403 for names that are not there, too. So that counts as the row's own fault where
        another image can be read.

        Raises:
            NoImageError: there is none, or it is too large.
            OSError: no image can be read just now.
        """
        try:
            return asked.result()
        except PermissionError as refused:
            wait(set(self._asked))
            if self._known is not None and self._can_read(self._known):
                told = "an image is not below image_root, or may not be read"
                raise NoImageError("image_not_found", told) from None
            raise self._marked(refused) from None
        except OSError as error:
            raise self._marked(error) from None

    def _marked(self, error: OSError) -> OSError:
        """An error that is no file's of the spool. Unlike ``filename``, this field is not in its text."""
        error.filename2 = self._root
        return error

    def _read(self, uri: str) -> bytes:
        try:
            content = _of_store(uri, self._options) if is_object(uri) else _local(uri)
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in _NO_FILE:
                raise NoImageError(
                    "image_not_found", "an image that the row names is not below image_root"
                ) from None
            raise
        if content is None:
            raise NoImageError(
                "invalid_image", f"an image has more than {IMAGE_LIMIT_BYTES:,} bytes, or is no file"
            )
        self._known = uri
        return content

    def _can_read(self, uri: str) -> bool:
        try:
            self._read(uri)
        except (OSError, NoImageError):
            return False
        return True


def _of_store(uri: str, options: ObjectStoreOptions | None) -> bytes | None:
    """The bytes of an object, in one request; None for one that is too large."""
    store, path = store_of(uri, options)
    with translated(uri):
        found = store.get(path)
        return bytes(found.bytes()) if found.meta["size"] <= IMAGE_LIMIT_BYTES else None


def _local(uri: str) -> bytes | None:
    """The bytes of a regular file; None for others, which may never end, and for one that is too large."""
    path: Path = local_path(uri)
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such file")
    if not path.is_file() or path.stat().st_size > IMAGE_LIMIT_BYTES:
        return None
    return path.read_bytes()
