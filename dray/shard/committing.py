"""The commits of an attempt at a shard: as soon as the store takes them, as long as the lease holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dray import history
from dray.engine.batches import too_large
from dray.errors import StoreFatalError, StoreTransientError, StoreUnreachableError, ValueTooLargeError
from dray.requests.model import Outcome
from dray.shard.commit_outage import CommitOutage
from dray.shard.lease import ShardLeaseKeeper
from dray.shard.open_rows import Finished
from dray.store import CommitReceipt, ShardLease, Store
from dray.triggers import Point, reach

T = TypeVar("T")


class Commits:
    """Commits micro-batches under the lease of ``holder``; ``rows`` were committed so far."""

    def __init__(self, store: Store, holder: ShardLeaseKeeper, outage: CommitOutage) -> None:
        self._store = store
        self._holder = holder
        self._outage = outage
        self.rows = 0

    def commit(self, batch: list[Outcome]) -> None:
        """Publish a micro-batch as soon as the store takes it.

        Meanwhile nothing more is fed, and the replica's finished rows wait in its own memory. A lock on the
        table of results lets the lease be renewed all the time: that ends when ``outage`` is too long.
        """
        lease = self._holder.lease
        try:
            receipt = self._patiently(lambda: publish(self._store, lease, batch))
        except ValueTooLargeError:
            for part in _without_the_largest(batch):
                self.commit(part)
            return
        self._outage.end()
        self._holder.renewed()
        self._holder.obey(receipt.signals)
        self.rows += receipt.inserted

    def finished(self) -> Finished:
        """What of the shard was committed before this attempt."""
        lease = self._holder.lease

        def ask(indexes: Sequence[int]) -> list[int]:
            return self._patiently(lambda: self._store.done_indexes(lease.job_id, indexes))

        return Finished(ask, lease.terminal)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """What the store gives, asked until it has been away for too long."""
        while True:
            self._holder.check()
            try:
                with self._outage.trying():
                    return ask()
            except (StoreTransientError, StoreUnreachableError):
                if self._outage.too_long:
                    raise  # else again: the store has waited between its own tries


def publish(store: Store, lease: ShardLease, batch: list[Outcome]) -> CommitReceipt:
    """Commit outcomes, where chaos tests can see it."""
    reach(Point.COMMIT_BEFORE)
    history.intent(lease, batch)
    receipt = store.commit(lease, batch)
    reach(Point.COMMIT_AFTER)
    history.ack(lease, batch)
    return receipt


def _without_the_largest(batch: list[Outcome]) -> list[list[Outcome]]:
    """A batch that the database did not take, in two: the largest answer, as an error row, is on its own."""
    largest = max(batch, key=lambda outcome: len(outcome.response or b""))
    if largest.failed:
        raise StoreFatalError("the store refuses an error row as too large; this is a fault in dray")
    others = [outcome for outcome in batch if outcome is not largest]
    return [part for part in (others, [too_large(largest)]) if part]
