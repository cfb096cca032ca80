"""Files by URI: local paths and object stores behind the same few functions.

A fault of a file that the user named leaves here as an InputError with a Problem.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote

from dray.errors import InputError, JobFailedError, JobPausedError, Problem
from dray.storage import objects, remote, seekable, streams
from dray.storage.datasets import DatasetError
from dray.storage.faults import NoBucketError
from dray.storage.objects import BLOCK_BYTES, ObjectStoreOptions, is_object
from dray.storage.remote import is_remote
from dray.storage.retries import PATIENCE, with_retries
from dray.temporary import TemporaryFolder

LINE_LIMIT_BYTES = 16 << 20
"""The longest line accepted, in bytes, unless the caller says otherwise."""

UPLOADS = "dray-upload-"
"""How the names of folders in ``TMPDIR`` begin that hold what is uploaded later."""

_WRITE_BUFFER_BYTES = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}

_GOES_ON = "then `dray resume JOB` or the same command goes on"
FULL = f"a disk or a quota is full: free space (also in TMPDIR), {_GOES_ON}"
"""What is said of a full disk where the error does not tell the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileInfo:
    """One written file: ``size`` in bytes, ``sha256`` in hex."""

    uri: str
    size: int
    sha256: str
    rows: int


def local_path(uri: str) -> Path:
    """The path of a local file given as a path or as ``file://``.

    In a URI ``%20`` is a blank (RFC 8089), unless a file has the name as it is spelled. Of a pattern, and of
    what is not there yet, the folders above tell.
    """
    spelled = Path(uri.removeprefix("file://")).expanduser()
    if not uri.startswith("file://") or "%" not in uri or "%00" in uri:
        return spelled
    for place in map(str, (spelled, *spelled.parents)):
        if "%" in place and os.path.exists(place):  # noqa: PTH110  raises for no name, however long
            return spelled
        if os.path.exists(unquote(place)):  # noqa: PTH110
            break
    return Path(unquote(uri.removeprefix("file://"))).expanduser()


def join(directory: str, name: str) -> str:
    """The URI of ``name`` in a directory."""
    return f"{directory.rstrip('/')}/{name}" if is_object(directory) else str(local_path(directory) / name)


# ---- reading ----


@contextmanager
def open_stream(uri: str, *, options: ObjectStoreOptions | None = None) -> Iterator[IO[bytes]]:
    """The plain bytes of a file, decompressed where needed, read from start to end.

    Errors inside the block that come from the file leave as InputError naming the file.
    """
    with reading(uri):
        raw: io.BufferedIOBase
        if is_remote(uri):
            blocks = cast("io.RawIOBase", streams.BlockReader(remote.stream(uri, options)))
            raw = io.BufferedReader(blocks, BLOCK_BYTES)
        else:
            raw = cast("io.BufferedIOBase", local_path(uri).open("rb", buffering=BLOCK_BYTES))
        with raw:
            yield streams.decompressed(raw, uri)


def open_lines(
    uri: str,
    *,
    limit: int = LINE_LIMIT_BYTES,
    options: ObjectStoreOptions | None = None,
    dropped: Callable[[bytes], None] = lambda piece: None,
) -> Iterator[tuple[int, bytes | None]]:
    """(line number from 1, line) of a text file; None stands for a line over ``limit`` bytes.

    ``dropped`` gets the pieces of such a line.
    """
    with open_stream(uri, options=options) as stream:
        yield from streams.lines(stream.read, limit=limit, dropped=dropped)


@contextmanager
def open_seekable(uri: str, *, options: ObjectStoreOptions | None = None) -> Iterator[IO[bytes]]:
    """The bytes of a file as they lie there, for readers that seek."""
    with reading(uri), _seekable(uri, options) as file:
        yield file


def stream_range(
    uri: str, offset: int, length: int, *, options: ObjectStoreOptions | None = None
) -> Iterator[bytes]:
    """The bytes of a range, in blocks."""
    if is_object(uri):
        yield from objects.stream_range(uri, offset, length, options)
        return
    with local_path(uri).open("rb", buffering=0) as file:
        file.seek(offset)
        while length > 0 and (block := file.read(min(length, BLOCK_BYTES))):
            length -= len(block)
            yield block


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn errors of reading ``uri`` into an InputError that names it."""
    try:
        yield
    except streams.CompressionError as error:
        raise refused("unreadable_compression", f"{error}; create the file again", uri) from error
    except streams.EncodingError as error:
        raise refused("invalid_text", str(error), uri) from error
    except DatasetError as error:
        raise refused(error.code, str(error), uri) from error
    except FileNotFoundError as error:
        told = str(error) if isinstance(error, NoBucketError) else "no such file"
        raise refused("missing_input", told, uri) from error
    except IsADirectoryError as error:
        raise folder_named(uri) from error
    except PermissionError as error:
        raise refused("unreadable_input", "no permission to read the file", uri) from error
    except OSError as error:
        raise refused("unreadable_input", f"the file cannot be read: {error}", uri) from error


# ---- writing ----


class AtomicFile:
    """Bytes on their way to a file that appears whole or not at all. See ``write_atomic``."""

    def __init__(self, uri: str, path: Path, *, hashed: bool) -> None:
        self.uri = uri
        self.rows = 0
        self._path = path
        self._hashed = hashed
        self.size = 0
        self._sha256 = hashlib.sha256()
        with writing(uri):
            self._file = open_locked(path)

    def write(self, data: bytes) -> None:
        """Append bytes; JobFailedError where the disk takes no more."""
        self.size += len(data)
        if self._hashed:
            self._sha256.update(data)
        try:  # not the context manager below: this runs once a row
            self._file.write(data)
        except OSError as error:
            raise _unwritable(self.uri, error) from error

    @contextmanager
    def reread(self) -> Iterator[IO[bytes]]:
        """What was written so far, open for reading."""
        with writing(self.uri):
            self._file.flush()
        with self._path.open("rb") as file:
            yield file

    def sync(self) -> None:
        """Everything on the disk."""
        with writing(self.uri):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file below."""
        with writing(self.uri):
            self._file.close()

    def discard(self) -> None:
        """Let go of the file below, whatever becomes of what is not written yet."""
        with suppress(OSError):
            self._file.close()

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._file.closed

    def info(self) -> FileInfo:
        """Size and digest of what was written; ``rows`` as its writer counted them."""
        sha256 = self._sha256.hexdigest() if self._hashed else ""
        return FileInfo(uri=self.uri, size=self.size, sha256=sha256, rows=self.rows)


@contextmanager
def write_atomic(
    uri: str, *, hashed: bool = True, options: ObjectStoreOptions | None = None
) -> Iterator[AtomicFile]:
    """Write a file that no reader sees before it is complete and safe.

    Local: a temporary name in the same folder, synced, renamed, the folder synced. Object store: a local
    temporary file, then one upload. When the block raises, nothing is published. JobFailedError says when
    the place takes no more.
    """
    if is_object(uri):
        with (
            TemporaryFolder(UPLOADS) as folder,
            written_aside(uri, folder, hashed=hashed) as file,
        ):
            yield file
            file.close()
            with writing(uri):
                with_retries(lambda: objects.upload(file._path, uri, options), PATIENCE)
        return
    target = local_path(uri)
    with writing(uri):
        target.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(uri, target.parent, hashed=hashed) as file:
        yield file
        file.sync()
        with writing(uri):
            file._path.replace(target)
            sync(target.parent)


@contextmanager
def written_aside(uri: str, folder: Path, *, hashed: bool, name: str = "") -> Iterator[AtomicFile]:
    """A file in ``folder`` that is gone after the block, also one that a killed writer left of this name."""
    name = name or uri.rpartition("/")[2]
    clear(folder, name)
    path = folder / f".{name}.{secrets.token_hex(4)}.part"
    file = None
    try:
        file = AtomicFile(uri, path, hashed=hashed)
        yield file
    finally:
        if file is not None:
            file.discard()  # what must be on the disk was synced; a full one must not keep what is left
        path.unlink(missing_ok=True)


def open_locked(path: Path) -> IO[bytes]:
    """A new file, whose lock says that its writer lives."""
    while True:
        file = path.open("xb", buffering=_WRITE_BUFFER_BYTES)
        with suppress(OSError):  # a file system without such locks: a killed writer's file stays
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        file.close()  # another process cleared it away between the two calls


def clear(folder: Path, name: str) -> None:
    """Remove what writers of this file left that were killed."""
    clear_abandoned(folder, f".{glob.escape(name)}.????????.part")


def clear_abandoned(folder: Path, pattern: str) -> None:
    """Remove files whose lock no process holds."""
    for path in folder.glob(pattern):
        with suppress(OSError), open_to_lock(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def open_to_lock(path: Path) -> IO[bytes]:
    """A file of another process, opened to try its lock, which NFS gives only on a file open for writing."""
    try:
        return path.open("r+b")
    except PermissionError:  # of another user, in a folder that several share
        return path.open("rb")


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Turn errors of writing ``uri`` into a JobFailedError that names it, a pause where a user can help."""
    try:
        yield
    except OSError as error:
        raise _unwritable(uri, error) from error


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that a disk or a user's quota on it is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


def _unwritable(uri: str, error: OSError) -> JobFailedError:
    told = f"{uri} cannot be written: {error.strerror or error}"
    if is_full(error):
        return JobPausedError(f"{told}; free space there, {_GOES_ON}")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return JobPausedError(f"{told}; let the job write there, {_GOES_ON}")
    return JobFailedError(told)


def exists(uri: str, *, options: ObjectStoreOptions | None = None) -> bool:
    """Whether there is a file of this name."""
    return objects.is_there(uri, options) if is_object(uri) else local_path(uri).is_file()


def size_of(uri: str, *, options: ObjectStoreOptions | None = None) -> int:
    """Bytes of a file; FileNotFoundError where there is none of this name."""
    return objects.head(uri, options).size if is_object(uri) else local_path(uri).stat().st_size


def remove(uri: str, *, options: ObjectStoreOptions | None = None) -> None:
    """Delete one file, and what writers of it that were killed left beside it."""
    if is_object(uri):
        objects.delete(uri, options)
    else:
        path = local_path(uri)
        clear(path.parent, path.name)
        path.unlink()


# ---- details ----


@contextmanager
def _seekable(uri: str, options: ObjectStoreOptions | None) -> Iterator[IO[bytes]]:
    if is_remote(uri):
        with seekable.open_seekable(uri, options) as file:
            yield file
        return
    with local_path(uri).open("rb") as file:
        yield file


def sync(path: Path) -> None:
    """Make a file's bytes, or what was renamed into a folder, last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refused(code: str, message: str, uri: str) -> InputError:
    """One problem with one file, as an error."""
    return InputError([Problem(code, message, uri)])


def folder_named(uri: str) -> InputError:
    """The refusal of a folder where files are wanted."""
    hint = f"a folder; name its files, for example {uri.rstrip('/')}/*.jsonl"
    return refused("missing_input", hint, uri)
