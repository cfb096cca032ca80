"""Pinned buffers between ordinary memory and a CUDA device: threads fill one, the device reads the other."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from dray.weights.loading.ring import InFlight, Ring

if TYPE_CHECKING:
    import torch

SLOT_BYTES = 64 << 20
"""Of one pinned buffer: about 1.2 ms of a fast bus, so that starting and waiting do not count."""

_PART_BYTES = 1 << 20  # less than this is not worth a thread
_MOST_THREADS = 8  # where copies in memory outrun a bus of 50 GB/s


def indexed(device: torch.device | str) -> torch.device:
    """The device with its index: "cuda" alone would mean another device in another thread."""
    import torch

    found = torch.device(device)
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


class Staging:
    """Copies tensors of the host into fresh tensors of a CUDA device, on a stream of its own.

    Pinned tensors go straight; others by way of pinned slots. The slots are made when the first such tensor
    comes, and no other code ever sees them. Use it as a context manager, from one thread; at its end all
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

        self._device = indexed(device)
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

    # Blocking: a thread that waits for it sleeps, and leaves the core to the threads that fill slots.
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

    def __init__(self, threads: int | None) -> None:
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
