"""Images that rows name, read whole from below the job's root.

Ingest has written the whole place of each into the spool (:mod:`dray.requests.images`); here it is held to
the root once more. What is wrong with one image is told from what is wrong with the store.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dray.codes import ErrorCode
from dray.requests.images import IMAGE_LIMIT_BYTES, ImageRoot
from dray.requests.validate import BadRow
from dray.storage.files import local_path
from dray.storage.objects import ObjectStoreOptions, is_object, store_of, translated

PATIENCE = 300.0
"""Seconds for one image to come: a store that hangs says nothing by itself."""

_LOOK_SECONDS = 1.0
_AGAIN = (1.0, 4.0, 10.0)  # seconds before an image is read again that cannot be read, while others can
_NO_FILE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}

_known: dict[str, str] = {}
"""By root, an image that this process has read; it outlives an attempt."""


class NoImageError(Exception):
    """An image of a row that is not there, or not to be had: the row's own fault."""

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


class ImagesAwayError(OSError):
    """The folder of images cannot be seen from this node, or holds nothing."""


class ImageFiles:
    """The files below a root, read whole by some threads.

    Raises:
        OSError: the root is a folder that is not on this node.
    """

    def __init__(
        self,
        root: str,
        pool: ThreadPoolExecutor,
        options: ObjectStoreOptions | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._place = ImageRoot(root).place
        self._pool = pool
        self._options = options
        self._check = check
        self._asked: set[Future[bytes]] = set()
        self._proven_at = 0.0  # monotonic: when the latest read began of those that gave an image
        if not is_object(root) and not local_path(root).is_dir():
            raise self._marked(ImagesAwayError(f"the folder {root} is not on this node"))

    def names(self, url: object) -> bool:
        """Whether a URL is the whole place of a file below the root, as ingest writes it."""
        try:
            return isinstance(url, str) and self._place(url, "") == url
        except BadRow:
            return False

    def ask(self, uri: str) -> Future[bytes]:
        """Have an image read."""
        asked = self._pool.submit(self._read, uri)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return asked

    def result(self, asked: Future[bytes], uri: str) -> bytes:
        """The bytes of an image.

        Stores answer 403 for names that are not there, too, and a name may be one that no store takes. So
        what goes wrong with one image counts as its row's fault while another can be read.

        Raises:
            NoImageError: there is none, or it is too large.
            OSError: no image can be read just now.
        """
        for pause in (*_AGAIN, None):
            try:
                return self._awaited(asked)
            except _FailedError as failed:
                self._raise_unless_others_are_read(failed)
                if isinstance(failed.error, PermissionError):
                    told = "an image is not below image_root, or may not be read"
                    raise NoImageError("image_not_found", told) from None
                if pause is None:
                    told = f"an image cannot be read ({type(failed.error).__name__}), while others can"
                    raise NoImageError("image_not_found", told) from None
            self._pause(pause)
            asked = self.ask(uri)
        raise AssertionError("the last try ends in one way or the other")

    def _awaited(self, asked: Future[bytes]) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while not wait([asked], _LOOK_SECONDS).done:
            self._check()
            if time.monotonic() > deadline:
                raise self._marked(TimeoutError("no image came"))
        return asked.result()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _LOOK_SECONDS))

    def _raise_unless_others_are_read(self, failed: _FailedError) -> None:
        """A read that began after the failure shows whether the store is there, and takes the keys."""
        if isinstance(failed.error, ImagesAwayError):
            raise self._marked(failed.error)
        if self._proven_at > failed.at:
            return
        if self._root not in _known:
            wait(set(self._asked), PATIENCE)
        if self._root not in _known or not self._can_read(_known[self._root]):
            raise self._marked(failed.error)

    def _marked(self, error: OSError) -> OSError:
        """An error that is no file's of the spool. Unlike ``filename``, this field is not in its text."""
        error.filename2 = self._root
        return error

    def _read(self, uri: str) -> bytes:
        began = time.monotonic()
        try:
            content = self._whole(uri)
        except OSError as error:
            raise _FailedError(error, time.monotonic()) from error
        _known[self._root] = uri
        self._proven_at = max(self._proven_at, began)
        return content

    def _whole(self, uri: str) -> bytes:
        try:
            content = _of_store(uri, self._options) if is_object(uri) else _local(uri)
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in _NO_FILE:
                self._refuse_empty_folder()
                told = "an image that the row names is not below image_root"
                raise NoImageError("image_not_found", told) from None
            raise
        if content is None:
            told = f"an image has more than {IMAGE_LIMIT_BYTES:,} bytes, or is no file"
            raise NoImageError("invalid_image", told)
        return content

    def _refuse_empty_folder(self) -> None:
        """A folder where nothing is mounted is empty: then no row is at fault."""
        if self._root in _known or is_object(self._root):
            return
        with os.scandir(local_path(self._root)) as entries:
            if next(entries, None) is None:
                raise ImagesAwayError(f"the folder {self._root} is empty on this node; is it mounted?")

    def _can_read(self, uri: str) -> bool:
        try:
            self._read(uri)
        except (_FailedError, NoImageError):
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
    path = local_path(uri)
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such file")
    if not path.is_file() or path.stat().st_size > IMAGE_LIMIT_BYTES:
        return None
    return path.read_bytes()
