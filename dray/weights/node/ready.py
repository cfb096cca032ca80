"""Which chunks of a model are on this node: one small file that every process of the node maps.

Layout: a page of :data:`_HEAD` (little endian), one byte per chunk (1 once its verified bytes are in their
file), 32 bytes of digest per chunk. Only the process that holds the model's lock writes. A mark is set after
the write of its bytes has returned. Both go through the kernel, so a process that sees the mark sees the
bytes. That is true for one boot of the machine: marks may reach a disk ahead of their bytes. After another
boot, no reader believes the marks until the filling process has checked the bytes and written the new boot's
id.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

from dray.errors import EngineStartError, WeightsError

STALL_SECONDS = 300.0
"""How long readers wait while nothing arrives before they give up."""

POLL_SECONDS = 0.001

_MAGIC = b"dray-rdy"
_HEAD = struct.Struct("<8sIIQ36s")  # magic, chunks, state, chunks ready, boot id
_STATE_AT = 12
_BOOT_AT, _BOOT_BYTES = 24, 36
_SPAN = struct.Struct("<dd")  # when the fetch began, and when the last chunk came
_SPAN_AT = 128
_COUNT = struct.Struct("<Q")
_GENERATION_AT, _BEATS_AT = 144, 152
_TEXT_AT, _TEXT_BYTES = 1024, 2048
_PAGE = 4096
_FILLING, _FAILED = 0, 2


class ChunkMap:
    """The map of one model's chunks. The process that fills the model makes it; readers open it.

    ``published``: the model is complete, and on disk before its map said so; every boot may believe it.
    """

    def __init__(self, path: Path, *, writable: bool, published: bool = False) -> None:
        self._path = path
        descriptor = self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self._release = weakref.finalize(self, os.close, descriptor)
        try:
            magic, self.chunks, *_ = _HEAD.unpack(os.pread(descriptor, _HEAD.size, 0).ljust(_HEAD.size))
            if magic != _MAGIC or os.fstat(descriptor).st_size != _size(self.chunks):
                raise WeightsError(f"{path}: not a map of ready chunks; remove {path.parent}")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, 0, access=access)
        except BaseException:
            self._release()
            raise
        self._believed = published

    @classmethod
    def made(cls, path: Path, chunks: int) -> ChunkMap:
        """The map at ``path``. If none is for this many chunks: a new one, which no reader believes yet."""
        if not _is_map(path, chunks):
            fresh = path.with_suffix(".new")
            head = _HEAD.pack(_MAGIC, chunks, _FILLING, 0, b"")
            with fresh.open("wb") as file:
                file.write(head)
                file.flush()
                # All blocks now: on a full disk that is an error, and a hole would be a SIGBUS later.
                os.posix_fallocate(file.fileno(), 0, _size(chunks))
                os.fsync(file.fileno())  # a power cut may keep the name and lose the bytes
            fresh.rename(path)
        return cls(path, writable=True)

    def close(self) -> None:
        """Unmap it."""
        self._map.close()
        self._release()

    @property
    def removed(self) -> bool:
        """Whether it lies under no name any more: what its marks say is of files that are gone, too."""
        return not self._release.alive or os.fstat(self._descriptor).st_nlink == 0

    # -- the process that fills -------------------------------------------------------------

    def forget(self) -> None:
        """Forget how an earlier try ended; its marks stay."""
        self._map[_TEXT_AT : _TEXT_AT + _TEXT_BYTES] = bytes(_TEXT_BYTES)
        self._set_state(_FILLING)

    def begin(self) -> None:
        """Forget how an earlier try ended; its marks stay, and are true in this boot of the machine."""
        self.forget()
        _SPAN.pack_into(self._map, _SPAN_AT, time.time(), time.time())
        self._map[_BOOT_AT : _BOOT_AT + _BOOT_BYTES] = boot_id().encode().ljust(_BOOT_BYTES, b"\0")

    def mark(self, number: int, digest: bytes) -> None:
        """The bytes of a chunk are in place, verified, and have this digest."""
        at = _PAGE + self.chunks + 32 * number
        self._map[at : at + 32] = digest
        self._map[_PAGE + number] = 1
        _SPAN.pack_into(self._map, _SPAN_AT, self.span[0], time.time())

    def unmark(self, number: int) -> None:
        """A chunk's bytes cannot be relied on."""
        self._map[_PAGE + number] = 0
        self._count(_GENERATION_AT)  # last: a reader that saw the mark sees this change

    def beat(self) -> None:
        """The filling process goes on, though it marks no chunk: it verifies, or waits for the disk."""
        self._count(_BEATS_AT)

    def fail(self, reason: str) -> None:
        """It cannot be filled; readers raise this."""
        text = reason.encode()[: _TEXT_BYTES - 1].decode(errors="ignore").encode()
        self._map[_TEXT_AT : _TEXT_AT + _TEXT_BYTES] = text.ljust(_TEXT_BYTES, b"\0")
        self._set_state(_FAILED)

    def _count(self, at: int) -> None:
        _COUNT.pack_into(self._map, at, _COUNT.unpack_from(self._map, at)[0] + 1)

    def _set_state(self, state: int) -> None:
        self._map[_STATE_AT : _STATE_AT + 4] = struct.pack("<I", state)

    # -- every process ----------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why it could not be filled."""
        if struct.unpack_from("<I", self._map, _STATE_AT)[0] != _FAILED:
            return None
        return self._map[_TEXT_AT : _TEXT_AT + _TEXT_BYTES].rstrip(b"\0").decode()

    @property
    def span(self) -> tuple[float, float]:
        """When the latest fetch began, and when its latest chunk came, in seconds since 1970."""
        began, ended = _SPAN.unpack_from(self._map, _SPAN_AT)
        return began, ended

    @property
    def signs(self) -> tuple[int, int]:
        """Counts of ready chunks and of beats; they change whenever the filling process makes progress."""
        return self.marks.count(1), _COUNT.unpack_from(self._map, _BEATS_AT)[0]

    @property
    def generation(self) -> int:
        """A number that changes whenever chunks that were ready are so no longer."""
        found: int = _COUNT.unpack_from(self._map, _GENERATION_AT)[0]
        return found

    @property
    def boot(self) -> str:
        """The boot of the machine in which its marks are known to be true, as it says now."""
        return self._map[_BOOT_AT : _BOOT_AT + _BOOT_BYTES].rstrip(b"\0").decode(errors="replace")

    @property
    def believed(self) -> bool:
        """Whether its marks are true: the filling process has begun in this boot of the machine."""
        self._believed = self._believed or self.boot == boot_id()
        return self._believed

    @property
    def noted(self) -> bytes:
        """A byte for each chunk, 1 where it was marked, in whichever boot of the machine."""
        return self._map[_PAGE : _PAGE + self.chunks]

    @property
    def marks(self) -> bytes:
        """A byte for each chunk, 1 where it is ready."""
        return self.noted if self.believed else bytes(self.chunks)

    def digest(self, number: int) -> bytes:
        """The digest of a ready chunk."""
        at = _PAGE + self.chunks + 32 * number
        return self._map[at : at + 32]

    def ready(self, numbers: Iterable[int]) -> bool:
        """Whether all these chunks are ready."""
        return self.believed and all(self._map[_PAGE + number] for number in numbers)

    def wait(
        self,
        numbers: range,
        *,
        what: str,
        stall: float = STALL_SECONDS,
        alive: Callable[[], None] = lambda: None,
    ) -> float:
        """Wait until these chunks are ready; returns the seconds waited.

        Raises:
            WeightsError: they never will be, or there was no sign of progress for ``stall`` seconds.
            EngineStartError: the model was removed meanwhile; it comes again.
        """
        if self.ready(numbers):
            return 0.0
        began = moved = time.monotonic()
        signs = (-1, 0)
        while not self.ready(numbers):
            if (failure := self.failure) is not None:
                raise WeightsError(failure)
            self.refuse_removed()
            now = time.monotonic()
            if (found := self.signs) != signs:
                signs, moved = found, now
            elif now - moved > stall:
                raise WeightsError(
                    f"{what}: nothing arrived for {stall:.0f} s "
                    f"({signs[0]} of {self.chunks} chunks are there); "
                    "is the node's agent stopped, or the store unreachable?"
                )
            alive()
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def refuse_removed(self) -> None:
        """For a reader that has opened a file of the model: the file may be that of a later map.

        Raises:
            EngineStartError: this map was removed.
        """
        if self.removed:
            raise EngineStartError(f"{self._path.parent} was removed from outside while the model was loaded")


def boot_id() -> str:
    """Names this boot of the machine: marks may reach a disk ahead of their bytes."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.is_file() else ""


def _is_map(path: Path, chunks: int) -> bool:
    """Whether a map for so many chunks lies there."""
    try:
        with path.open("rb") as file:
            magic, count, *_ = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size))
            size = os.fstat(file.fileno()).st_size
            return (magic, count, size) == (_MAGIC, chunks, _size(chunks))
    except FileNotFoundError:
        return False


def _size(chunks: int) -> int:
    return _PAGE + 33 * chunks
