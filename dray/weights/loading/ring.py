"""The bookkeeping of copies to a device: where a tensor goes, and when to wait. No device, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

_ALIGNMENT = 512  # bytes; where pieces begin in a slot, as the device's own allocator does it
_STRIDE = 1 << 30  # bytes handed out before the device is asked for its free memory again


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
        """Return when it has happened."""


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
        """Return when one more copy may start."""
        while self._bytes > self._limit and len(self._copies) > 1:
            self._wait_for_the_oldest()

    def add(self, size: int, done: Done) -> None:
        """One more copy, of ``size`` bytes."""
        counted = max(size, self._least)
        self._copies.append((counted, done))
        self._bytes += counted

    def finish(self) -> None:
        """Return when no copy is under way."""
        while self._copies:
            self._wait_for_the_oldest()

    def _wait_for_the_oldest(self) -> None:
        size, done = self._copies.popleft()
        done.synchronize()
        self._bytes -= size
