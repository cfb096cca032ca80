"""The signs of a shard task that stands still: its lease is over, or it leaves a free place untaken."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from dray.store import Shard, ShardState


class _StandingStill:
    """Shards of which the same has been true for ``seconds``, by ``clock``, while the driver watched."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[int, tuple[Hashable, float]] = {}

    def forget(self, number: int | None = None) -> None:
        """The shard has a new task; without a number: the store was away, and nothing is known of any."""
        if number is None:
            self._since.clear()
        else:
            self._since.pop(number, None)

    def _unchanged(self, seen: Mapping[int, Hashable]) -> frozenset[int]:
        """The numbers of the shards that stand still, given what is true now, by number."""
        at = self._clock()
        self._since = {
            number: known if (known := self._since.get(number, (what, at)))[0] == what else (what, at)
            for number, what in seen.items()
        }
        return frozenset(n for n, (_, since) in self._since.items() if at - since > self._seconds)


class LapsedLeases(_StandingStill):
    """Shards whose lease has been over, unchanged, for ``seconds`` while the driver watched.

    The seconds are the driver's own. A store that was away, and a database whose clock was set forward, end
    leases of tasks that are well: these renew them, or end, as soon as the store answers again.
    """

    def look(self, shards: Iterable[Shard], now: float) -> frozenset[int]:
        """The numbers of the shards that stand still. ``now`` is the store's time."""
        return self._unchanged(
            {
                shard.number: (shard.epoch, shard.lease_until)
                for shard in shards
                if shard.state is ShardState.LEASED and not shard.is_leased(now)
            }
        )


class Unclaimed(_StandingStill):
    """Shards whose task runs, and has left a free place untaken for ``seconds`` while the driver watched.

    A task that takes places is well, though its attempts end between two looks: each has another epoch.
    """

    def look(self, shards: Iterable[Shard]) -> frozenset[int]:
        """The numbers of the shards that stand still, of those for which there is a place now."""
        return self._unchanged({shard.number: shard.epoch for shard in shards})
