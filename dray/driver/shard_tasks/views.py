"""The store's rows of shards and replicas, as :mod:`dray.scheduling` sees them."""

from __future__ import annotations

from collections.abc import Sequence

from dray.scheduling import Ready, ReplicaView, ShardView, views
from dray.store import ReplicaRow, ReplicaState, Shard


def replica_views(shards: Sequence[Shard], replicas: Sequence[ReplicaRow], now: float) -> list[ReplicaView]:
    """The ready replicas with their loads, as the claim of a shard sees them. ``now`` is the store's time."""
    return views(
        [
            Ready(row.name, row.nodes, row.slots, row.reserved, row.family)
            for row in replicas
            if row.state is ReplicaState.READY
        ],
        leased=((shard.replica, shard.family, 1) for shard in shards if shard.is_leased(now)),
        suspects={shard.number for shard in shards if shard.crashes},
    )


def shard_view(shard: Shard) -> ShardView:
    """An open shard, as a place is chosen for it."""
    return ShardView(number=shard.number, suspect=shard.crashes > 0, family=shard.family)


def rank(shard: Shard) -> tuple[int, int]:
    """Suspects first: the search for a bad row takes a start of an engine for each halving."""
    return -shard.crashes, shard.number
