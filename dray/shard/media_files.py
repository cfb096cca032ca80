"""Images, sounds and videos that rows name, read whole from below the job's root.

Ingest has written the whole place of each into the spool (:mod:`dray.requests.media.medium`); here it is held
to the root once more. What is wrong with one file is told from what is wrong with the store.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from dray.codes import ErrorCode
from dray.requests.media.medium import MediaRoot, Medium
from dray.requests.validate import BadRow
from dray.storage.faults import translated
from dray.storage.files import local_path
from dray.storage.objects import ObjectStoreOptions, is_object, store_of

PATIENCE = 120.0
"""Seconds for one file to come: a store that hangs says nothing by itself."""

_LOOK_SECONDS = 1.0
_AGAIN = (1.0, 4.0, 10.0)  # seconds before a file that could not be read is tried again
_NO_FILE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}

_known: dict[str, str] = {}
"""By root, a file that this process has read; it outlives an attempt."""


class NoFileError(Exception):
    """A file of a row that is not there, or not to be had: the row's own fault."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message


class _FailedError(Exception):
    """A read that failed ``at`` some moment (monotonic)."""

    def __init__(self, error: OSError, at: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.at = at


class MediaAwayError(OSError):
    """The folder of files cannot be seen from this node, or holds nothing."""


class MediaFiles:
    """The files of a medium below its root, read whole by some threads.

    ``check`` is called while a file is waited for, and may raise. ``others`` gives files that rows of the job
    name, to see whether any can be read.

    Raises:
        OSError: the root is a folder that is not on this node.
    """

    def __init__(
        self,
        medium: Medium,
        root: str,
        pool: ThreadPoolExecutor,
        options: ObjectStoreOptions | None,
        check: Callable[[], None],
        others: Callable[[], Sequence[str]],
    ) -> None:
        self.typical = medium.most_bytes // 8  # bytes of a file: a running mean
        self._medium = medium
        self._root = root
        self._place = MediaRoot(medium, root).place
        self._pool = pool
        self._options = options
        self._check = check
        self._others = others
        self._proven_at = 0.0  # monotonic: when the latest read began of those that gave a file
        if not is_object(root) and not local_path(root).is_dir():
            raise self._marked(MediaAwayError(f"the folder {root} is not on this node"))

    def names(self, url: object) -> bool:
        """Whether a URL is the whole place of a file below the root, as ingest writes it."""
        try:
            return isinstance(url, str) and self._place(url, "") == url
        except BadRow:
            return False

    def ask(self, uri: str) -> Future[bytes]:
        """Have a file read."""
        return self._pool.submit(self._read, uri)

    def result(self, asked: Future[bytes]) -> bytes:
        """The bytes of a file.

        Stores answer 403 for names that are not there, too, and a name may be one that no store takes. So
        what goes wrong with one file again and again is its row's fault, if another can be read then.

        Raises:
            NoFileError: there is none, or it is too large.
            OSError: no file can be read just now.
        """
        try:
            content = self._awaited(asked)
        except _FailedError as failed:
            if isinstance(failed.error, MediaAwayError) or not self._others_can_be_read(failed.at):
                raise self._marked(failed.error) from None
            told = f"{self._medium.one} cannot be read ({type(failed.error).__name__}), while others can"
            raise NoFileError(self._medium.missing, told) from None
        self.typical = (15 * self.typical + len(content)) // 16
        return content

    def _awaited(self, asked: Future[bytes]) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while not wait([asked], _LOOK_SECONDS).done:
            self._check()
            if time.monotonic() > deadline:
                raise _FailedError(TimeoutError(f"no {self._medium.name} came"), time.monotonic())
        return asked.result()

    def _others_can_be_read(self, failed_at: float) -> bool:
        """Whether a file was read, or can be, by a read that began after the failure."""
        if self._proven_at > failed_at:
            return True
        for uri in self._witnesses():
            with suppress(_FailedError, NoFileError):
                self._awaited(self._pool.submit(self._once, uri))
                return True
        return False

    def _witnesses(self) -> Iterator[str]:
        if self._root in _known:
            yield _known[self._root]
        yield from filter(self.names, self._others())

    def _marked(self, error: OSError) -> OSError:
        """An error that is no file's of the spool. Unlike ``filename``, this field is not in its text."""
        error.filename2 = self._root
        return error

    def _read(self, uri: str) -> bytes:
        """A file's bytes, after some tries; runs in a thread."""
        for pause in _AGAIN:
            try:
                return self._once(uri)
            except _FailedError as failed:
                if isinstance(failed.error, MediaAwayError):
                    raise
            time.sleep(pause)
        return self._once(uri)

    def _once(self, uri: str) -> bytes:
        began, most = time.monotonic(), self._medium.most_bytes
        try:
            content = _of_store(uri, most, self._options) if is_object(uri) else _local(uri, most)
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or error.errno in _NO_FILE):
                raise _FailedError(error, time.monotonic()) from error
            self._refuse_empty_folder()
            told = f"{self._medium.one} that the row names is not below {self._medium.root}"
            raise NoFileError(self._medium.missing, told) from None
        if content is None:
            told = f"{self._medium.one} has more than {most:,} bytes, or is no file"
            raise NoFileError(self._medium.invalid, told)
        _known[self._root] = uri
        self._proven_at = max(self._proven_at, began)
        return content

    def _refuse_empty_folder(self) -> None:
        """A folder where nothing is mounted any more is empty, or gone: then no row is at fault."""
        if is_object(self._root):
            return
        try:
            with os.scandir(local_path(self._root)) as entries:
                if next(entries, None) is not None:
                    return
        except OSError:
            pass
        away = MediaAwayError(f"the folder {self._root} is gone from this node, or empty; is it mounted?")
        raise _FailedError(away, time.monotonic())


def _of_store(uri: str, most: int, options: ObjectStoreOptions | None) -> bytes | None:
    """The bytes of an object, in one request; None for one that is too large."""
    store, path = store_of(uri, options)
    with translated(uri):
        found = store.get(path)
        return bytes(found.bytes()) if found.meta["size"] <= most else None


def _local(uri: str, most: int) -> bytes | None:
    """The bytes of a regular file; None for others, which may never end, and for one that is too large."""
    path = local_path(uri)
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such file")
    if not path.is_file() or path.stat().st_size > most:
        return None
    return path.read_bytes()
