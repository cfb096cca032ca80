"""Tensors from mapped files to a CUDA device, at the pace of a copy from pinned memory.

A copy from ordinary memory passes through a buffer of the driver, at a fraction of what the bus can do. There
are two ways around that, and :func:`to_device` takes what it finds:

- The mapping itself is pinned (:func:`registered`): the device reads it, and the CPU touches no byte. Pinning
  takes its time, though (about 0.1 s per GB: https://github.com/vllm-project/vllm/pull/51081), so it pays
  where it happens beside something else, or once for several loads.
- Pinned buffers between (:class:`Staging`): threads fill one while the device reads the other.

Either way what the caller gets is a device tensor of its own, never a buffer that is used again.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import torch

SLOT_BYTES = 64 << 20
"""Of one pinned buffer: about 1.2 ms of a fast bus, so that starting and waiting do not count."""

_ALIGNMENT = 512  # bytes; where pieces begin in a slot, as the device's own allocator does it
_STRIDE = 1 << 30  # bytes handed out before the device is asked for its free memory again
_PART_BYTES = 1 << 20  # less than this is not worth a thread
_MOST_THREADS = 8  # where copies in memory outrun a bus of 50 GB/s
_PORTABLE, _READ_ONLY = 0x01, 0x08  # cudaHostRegisterPortable: for all devices; cudaHostRegisterReadOnly

logger = logging.getLogger(__name__)


def to_device(
    tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device | str, *, headroom_bytes: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors on a CUDA device, in the same order, ready for the stream that is current at ``next``.

    Each is memory of its own, which the caller may keep and change. A tensor comes as it was given where the
    device is not a CUDA device, or where its free memory would not hold the largest tensor so far and the
    headroom. That is then a view of the mapping: who may write into it depends on how it was mapped.

    When the iterator ends or is closed, nothing reads the host's tensors any more. About 128 MiB, or two
    tensors, are on their way at a time; what the caller has let go is used again.

    Args:
        tensors: of the host; from memory in :func:`registered` they are read by the device itself.
        headroom_bytes: of device memory, to be left to the caller.
    """
    import torch

    if torch.device(device).type != "cuda":
        yield from tensors
        return
    target = _indexed(device)
    room = Room(headroom_bytes, lambda: _free_bytes(target))
    with Staging(target) as staging:
        for name, tensor in tensors:
            # Not through a variable: this frame would keep the tensor alive while the caller has it no more.
            yield name, _moved(tensor, staging, room)


def _moved(tensor: torch.Tensor, staging: Staging, room: Room) -> torch.Tensor:
    import torch

    if tensor.device.type != "cpu" or not room.takes(tensor.nbytes):
        return tensor
    try:
        return staging.copy(tensor)
    except torch.OutOfMemoryError:  # somebody else was faster, or it is free in pieces only
        room.ask_again()
        return tensor


def _indexed(device: torch.device | str) -> torch.device:
    """With its index: "cuda" alone would mean another device in another thread."""
    import torch

    found = torch.device(device)
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def _free_bytes(device: torch.device) -> int:
    """Free on the device, or held by the allocator for nobody."""
    import torch

    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


class Room:
    """Whether a device has room for one more tensor: for the largest so far, and the headroom.

    Asking the device takes up to a millisecond, and models have tens of thousands of tensors. So it is asked
    once per GiB, and until then as if the caller kept everything.

    Args:
        free: bytes that are free on the device now.
    """

    def __init__(self, headroom_bytes: int, free: Callable[[], int]) -> None:
        self._headroom = headroom_bytes
        self._free = free
        self._largest = 0
        self._left = 0

    def takes(self, size: int) -> bool:
        """Whether ``size`` bytes may go to the device; counts them if so."""
        self._largest = max(self._largest, size)
        if size > self._left:
            room = self._free() - self._headroom
            self._left = min(room, max(_STRIDE, size)) if room >= self._largest else 0
        if size > self._left:
            return False
        self._left -= size
        return True

    def ask_again(self) -> None:
        """What was known of the device is wrong."""
        self._left = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes [``start``, ``start + size``) of a tensor, which take the place from byte ``at`` of a slot.

    ``fresh``: the first in its slot, which may be filled only once everything has left it.
    """

    slot: int
    at: int
    start: int
    size: int
    fresh: bool


class Ring:
    """Which bytes of which slot each tensor takes: slot after slot, small tensors sharing one.

    Args:
        slots: two or more, so that one can be filled while another is read.
        slot_bytes: of each; a multiple of 512.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        if slots < 2 or slot_bytes < _ALIGNMENT or slot_bytes % _ALIGNMENT:
            raise ValueError(f"{slots} slots of {slot_bytes} bytes: want 2 or more, of a multiple of 512")
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._slot = slots - 1
        self._used = slot_bytes  # full, so that the first piece begins slot 0

    def pieces(self, size: int) -> Iterator[Piece]:
        """The pieces of one tensor of ``size`` bytes, in order; none when it is empty."""
        start = 0
        while start < size:
            fresh = self._used == self._slot_bytes
            if fresh:
                self._slot = (self._slot + 1) % self._slots
                self._used = 0
            at = self._used
            taken = min(size - start, self._slot_bytes - at)
            self._used += _aligned(taken)
            yield Piece(slot=self._slot, at=at, start=start, size=taken, fresh=fresh)
            start += taken


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Done(Protocol):
    """Something to wait for, as ``torch.cuda.Event``."""

    def synchronize(self) -> None:
        """Returns when it has happened."""


class InFlight:
    """Copies that were started: no more than ``limit`` bytes of them at a time, or else no more than two.

    The host starts copies much faster than the bus does them. Without a limit the device would have to hold a
    whole model beside the one that is being filled.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._least = limit // 256  # every copy counts, however small: its event takes memory, too
        self._copies: deque[tuple[int, Done]] = deque()
        self._bytes = 0

    def make_way(self) -> None:
        """Returns when one more copy may start."""
        while self._bytes > self._limit and len(self._copies) > 1:
            self._wait_for_the_oldest()

    def add(self, size: int, done: Done) -> None:
        """One more copy, of ``size`` bytes."""
        counted = max(size, self._least)
        self._copies.append((counted, done))
        self._bytes += counted

    def finish(self) -> None:
        """Returns when no copy is under way."""
        while self._copies:
            self._wait_for_the_oldest()

    def _wait_for_the_oldest(self) -> None:
        size, done = self._copies.popleft()
        done.synchronize()
        self._bytes -= size


class Staging:
    """Copies tensors of the host into fresh tensors of a CUDA device, on a stream of its own.

    Tensors that are pinned go straight; others by way of pinned slots, which are made when the first such
    tensor comes and which nobody else ever sees. Use it as a context manager, from one thread; at its end all
    copies are done. PyTorch keeps the slots' memory for the process's next pinned buffers.

    Args:
        slots: two or more.
        slot_bytes: of each slot; a multiple of 512.
        threads: that fill slots; the default is one per core that this process may use, and at most 8.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        slots: int = 2,
        slot_bytes: int = SLOT_BYTES,
        threads: int | None = None,
    ) -> None:
        import torch

        self._device = _indexed(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._in_flight = InFlight(2 * SLOT_BYTES)
        self._new_slots: Callable[[], _Slots] = lambda: _Slots(slots, slot_bytes, threads)
        self._slots: _Slots | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """A new tensor on the device, equal to ``source``, ready for the stream that is current now.

        A pinned ``source`` is still read after this returns, until :meth:`close`; another one is not.

        Raises:
            torch.OutOfMemoryError: the device has no memory for it.
        """
        import torch

        self._in_flight.make_way()
        consumer = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            # Memory of this stream's pool: whatever this stream did with it before is over when it is filled.
            target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
            if source.nbytes:
                self._fill(target, source)
            done = _event()
            done.record(self._stream)
        consumer.wait_event(done)
        # Else memory that the consumer lets go would be filled again while its stream still reads it.
        target.record_stream(consumer)
        self._in_flight.add(source.nbytes, done)
        return target

    def _fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if source.is_pinned():
            target.copy_(source, non_blocking=True)
            return
        if self._slots is None:
            self._slots = self._new_slots()
        self._slots.fill(target, source.contiguous(), self._stream)

    def close(self) -> None:
        """Wait for all copies, and give the slots up."""
        self._in_flight.finish()
        if self._slots is not None:
            self._slots.close()
            self._slots = None


def _event() -> torch.cuda.Event:
    import torch

    # Blocking: who waits for it sleeps, and leaves the core to the threads that fill slots.
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


class _Slots:
    """The pinned memory of a :class:`Ring`, and the events that say when a slot has been read."""

    def __init__(self, slots: int, slot_bytes: int, threads: int | None) -> None:
        import torch

        self._ring = Ring(slots, slot_bytes)
        self._memory = [  # the device is named because a loader may run where another one is the default
            torch.empty(slot_bytes, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(slots)
        ]
        self._read = [_event() for _ in range(slots)]
        self._copier = HostCopier(threads)

    def fill(self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Start copies of all bytes on ``stream``, which must be current; reads ``source`` to its end."""
        target_bytes = _as_bytes(target)
        for piece in self._ring.pieces(source.nbytes):
            if piece.fresh:
                self._read[piece.slot].synchronize()
            slot = self._memory[piece.slot][piece.at : piece.at + piece.size]
            self._copier.copy(slot.data_ptr(), source.data_ptr() + piece.start, piece.size)
            target_bytes[piece.start : piece.start + piece.size].copy_(slot, non_blocking=True)
            self._read[piece.slot].record(stream)  # again with every piece: the last one counts

    def close(self) -> None:
        """End the threads. The memory may be let go at once: PyTorch knows the copies that still read it."""
        self._copier.close()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a contiguous tensor's bytes."""
    import torch

    return tensor.reshape(-1).view(torch.uint8)  # flat first: a scalar cannot be viewed in another size


class HostCopier:
    """Copies memory with several threads: one alone is slower than the bus.

    Not PyTorch's own threads: engines set those to one.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="dray-staging")

    def copy(self, target: int, source: int, size: int) -> None:
        """``size`` bytes from address to address; they must not overlap."""
        part = max(_PART_BYTES, -(-size // self._threads))
        if part >= size:
            ctypes.memmove(target, source, size)
            return
        # memmove, called this way, lets go of the interpreter's lock.
        starts = range(0, size, part)
        parts = [
            self._pool.submit(ctypes.memmove, target + start, source + start, min(part, size - start))
            for start in starts
        ]
        for future in parts:
            future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


@contextmanager
def registered(mapping: mmap.mmap | memoryview, device: torch.device | str = "cuda") -> Iterator[bool]:
    """Pin a shared mapping for the length of this block; gives whether that worked.

    Where it does not, :func:`to_device` stages. A read-only mapping can be pinned only where the device
    supports that, and not even a B300 does (https://github.com/vllm-project/vllm-omni/pull/6240). A writable
    one can be everywhere: map the file a second time, for the device alone, and let nobody write. 512 GiB and
    more are refused.

    The mapping cannot be closed in this block. Tensors of it are pinned where their whole storage lies in it.

    Raises:
        ValueError: it is a private mapping. Pinning one makes a copy of every page, for this process alone.
    """
    import numpy

    view = numpy.frombuffer(mapping, dtype=numpy.uint8)
    address, size = view.ctypes.data, view.nbytes
    access = _access(address, size)
    if any(modes.endswith("p") for modes in access):
        raise ValueError("only a shared mapping can be registered; this memory is private to the process")
    writable = all("w" in modes for modes in access)
    pinned = size > 0 and _is_there(device) and _register(address, size, writable, device)
    try:
        yield pinned
    finally:
        if pinned:
            _unregister(address, device)
        del view  # until here it kept the mapping from being closed


def _access(address: int, size: int) -> list[str]:
    """How the kernel says that this memory is mapped, as ``rw-s``: one entry for each stretch of it."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        stretch, modes, *_ = line.split()
        start, end = (int(part, 16) for part in stretch.split("-"))
        if start < address + size and address < end:
            found.append(modes)
    return found


def _is_there(device: torch.device | str) -> bool:
    import torch

    return torch.device(device).type == "cuda" and torch.cuda.is_available()


def _register(address: int, size: int, writable: bool, device: torch.device | str) -> bool:
    """Whether it was pinned, in one of the ways that this memory allows.

    Plain pinning of read-only memory works where the device uses the host's page tables.
    """
    for flags in (_PORTABLE,) if writable else (_READ_ONLY | _PORTABLE, _PORTABLE):
        code = _call(device, "cudaHostRegister", address, size, flags)
        if code == 0:
            return True
        logger.info("%s bytes of weights are not pinned: CUDA error %s (flags %s)", f"{size:,}", code, flags)
    return False


def _unregister(address: int, device: torch.device | str) -> None:
    import torch

    torch.cuda.synchronize(_indexed(device))  # what was started from it must have been read
    code = _call(device, "cudaHostUnregister", address)
    if code != 0:
        logger.warning("pinned weights could not be unpinned: CUDA error %s", code)


def _call(device: torch.device | str, name: str, *arguments: Any) -> int:
    """The code that a function of the CUDA runtime returns, 0 when it worked.

    Called in a thread of its own: CUDA keeps a failed call's error for the thread that made it, and PyTorch
    would take it for the failure of whatever it looks at next.
    """
    import torch

    target = _indexed(device)

    def call() -> int:
        with torch.cuda.device(target):
            return int(getattr(torch.cuda.cudart(), name)(*arguments))  # type: ignore[no-untyped-call]

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()
