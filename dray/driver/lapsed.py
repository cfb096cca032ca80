"""The signs of a shard task that stands still: its lease is over, or it leaves a free place untaken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dray.store import Shard, ShardState


class LapsedLeases:
    """Shards whose lease has been over, unchanged, for ``seconds`` while the driver watched.

    The seconds are the driver's own. A store that was away, and a database whose clock was set forward, end
    leases of tasks that are well: these renew them, or end, as soon as the store answers again.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[int, tuple[tuple[int, float], float]] = {}

    def look(self, shards: Iterable[Shard], now: float) -> frozenset[int]:
        """The numbers of the shards that stand still. ``now`` is the store's time."""
        at = self._clock()
        over = {
            shard.number: (shard.epoch, shard.lease_until or 0.0)
            for shard in shards
            if shard.state is ShardState.LEASED and not shard.is_leased(now)
        }
        self._since = {
            number: known if (known := self._since.get(number, (lease, at)))[0] == lease else (lease, at)
            for number, lease in over.items()
        }
        return frozenset(n for n, (_, since) in self._since.items() if at - since > self._seconds)

    def forget(self, number: int | None = None) -> None:
        """The shard has a new task; without a number: the store was away, and nothing is known of any."""
        if number is None:
            self._since.clear()
        else:
            self._since.pop(number, None)


class Unclaimed:
    """Shards whose task runs, and has left a free place untaken for ``seconds`` while the driver watched."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[int, float] = {}

    def look(self, numbers: Iterable[int]) -> frozenset[int]:
        """The numbers of the shards that stand still, of those for which there is a place now."""
        at = self._clock()
        self._since = {number: self._since.get(number, at) for number in numbers}
        return frozenset(number for number, since in self._since.items() if at - since > self._seconds)

    def forget(self, number: int | None = None) -> None:
        """The shard has a new task; without a number: no task could ask, for the store was away."""
        if number is None:
            self._since.clear()
        else:
            self._since.pop(number, None)
