"""The file that a bundle is: a packed tar of regular files, and behind it what vouches for its bytes."""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
import shutil
import struct
import tarfile
from pathlib import Path
from typing import IO, Any, cast

from dray.storage import streams
from dray.storage.files import AtomicFile, join
from dray.storage.objects import BLOCK_BYTES

LIMIT_BYTES = 8 << 30
"""Bytes of a bundle, packed and unpacked: a runaway cache is neither saved nor restored."""

LIMIT_FILES = 200_000

_TIME = "DRAY.mtime_ns"  # in whole nanoseconds: tar's own float loses digits, and ninja compares all of them
# A frame that zstd skips (RFC 8878, section 3.1.2): magic number, bytes; then the key and the SHA-256 in hex.
_FRAME = struct.pack("<II", 0x184D2A50, 128)
_TRAILER_BYTES = len(_FRAME) + 128
# Ninja decides by times whether what is built there is current; elsewhere names are digests of the content.
_BUILT_BY_NINJA = ("flashinfer/", "tvm-ffi/", "torch-extensions/")
# Locks, and files on their way: Triton's tmp.pid_*, Inductor's *.tmp, vLLM's *.tmp.PID and mkstemp's names.
_PASSING = ("*.lock", "lock", "locks", "*.tmp", "*.tmp.*", "tmp", "tmp.*", "tmp????????", ".nfs*", "*.log")
# The first is about one node's wiring; the second holds downloads, even weights (VLLM_ASSETS_CACHE).
_NOT_SHARED = ("vllm/gpu_p2p_access_cache_for_*", "vllm/assets/*")


class UnusableError(Exception):
    """A bundle that is damaged, or holds what no bundle holds; says what."""


def uri_of(location: str, key: str) -> str:
    """Where the bundle of a key lies."""
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"{key!r} is no key of a bundle")
    return join(location, f"{key}.tar.zst")


def trailer_of(key: str, digest: str) -> bytes:
    """What stands behind the tar."""
    return _FRAME + key.encode() + digest.encode()


def verify(archive: Path, key: str) -> None:
    """Check the archive against its trailer, and cut the trailer off."""
    size = archive.stat().st_size - _TRAILER_BYTES
    if size <= 0:
        raise UnusableError("it is cut off")
    with archive.open("r+b") as file:
        file.seek(size)
        trailer = file.read()
        file.truncate(size)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if trailer != trailer_of(key, digest):
        raise UnusableError("it is damaged: its SHA-256 is not the one at its end")


def unpack(archive: Path, tree: Path) -> None:
    """All files of it, into a new folder."""
    tree.mkdir(mode=0o700)
    with archive.open("rb") as raw, streams.decompressed(raw, "bundle.zst") as plain:
        limited = cast("IO[bytes]", _Limited(plain))
        with tarfile.open(fileobj=limited, mode="r|", bufsize=BLOCK_BYTES) as tar:
            for number, member in enumerate(tar):
                if number >= LIMIT_FILES:
                    raise UnusableError(f"it has more than {LIMIT_FILES:,} files")
                _place(tar, member, tree)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Path) -> None:
    """Write one file. Only regular ones are, so there is never a link on the way to another."""
    parts = member.name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise UnusableError(f"{member.name!r} is no path inside the folder")
    if member.type != tarfile.REGTYPE or member.sparse is not None:
        raise UnusableError(f"{member.name!r} is not a regular file")
    path = tree.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # it is a regular file
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)
    path.chmod(0o700 if member.mode & 0o100 else 0o600)
    if _TIME in member.pax_headers:
        nanoseconds = int(member.pax_headers[_TIME])
        os.utime(path, ns=(nanoseconds, nanoseconds))


class _Limited:
    """A stream that ends in an error where it gives more than a bundle may hold."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self._left = LIMIT_BYTES

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise UnusableError(f"it unpacks to more than {LIMIT_BYTES:,} bytes")
        return data


def names_in(root: Path) -> list[str]:
    """The regular files worth keeping, relative to ``root``, in order."""
    names, size = [], 0
    for folder, folders, files in os.walk(root):  # does not follow links
        folders[:] = [name for name in folders if not _matches(name, _PASSING)]
        for name in files:
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if _matches(name, _PASSING) or _matches(relative, _NOT_SHARED) or path.is_symlink():
                continue
            if path.is_file():
                names.append(relative)
                size += path.stat().st_size
    if size > LIMIT_BYTES or len(names) > LIMIT_FILES:
        raise UnusableError(f"{len(names):,} files of {size:,} bytes are more than a bundle may hold")
    return sorted(names)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def pack(file: AtomicFile, root: Path, names: list[str]) -> None:
    """Write the tar of these files; those that are gone by now are left out."""
    import pyarrow

    raw = pyarrow.PythonFile(_Sink(file), mode="w")
    with (
        pyarrow.CompressedOutputStream(raw, "zstd") as packed,
        tarfile.open(
            fileobj=cast("IO[bytes]", packed), mode="w|", bufsize=BLOCK_BYTES, format=tarfile.PAX_FORMAT
        ) as tar,
    ):
        for name in names:
            _add(tar, root, name)


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    """Append one file, without its owner; its time is kept only where ninja compares times."""
    try:
        source = (root / name).open("rb")
    except FileNotFoundError:
        return
    with source:
        status = os.fstat(source.fileno())
        info = tarfile.TarInfo(name)
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        if name.startswith(_BUILT_BY_NINJA):
            info.pax_headers = {_TIME: str(status.st_mtime_ns)}
        tar.addfile(info, source)


class _Sink(io.RawIOBase):
    """An AtomicFile for pyarrow, which closes what it writes to."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        return len(data)
