"""A place on a replica for a shard: asked of the store until there is one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dray.engine.client import ReplicaClient
from dray.errors import EngineError
from dray.shard.work import AttemptEnd, OpenWork
from dray.store import AttemptCause, ShardLease
from dray.triggers import Point, reach

_ASK_EVERY = 0.2  # seconds between questions for a place on a replica


def wait_for_place(work: OpenWork, on_answer: Callable[[], None] = lambda: None) -> ShardLease | AttemptEnd:
    """Wait for a place; returns how the attempt ends where it gets none.

    ``on_answer``: the store took a write. The driver ends a job for which no replica is ready for long.
    """
    again = False
    while True:
        if work.store.stop_signals(work.job.job_id).stop:
            return AttemptEnd.STOPPED
        reach(Point.CLAIM_BEFORE)
        claim = work.store.place_shard(
            work.job, work.shard.number, owner=work.owner, ttl=work.ttl, again=again
        )
        on_answer()
        if claim.lease is not None:
            reach(Point.CLAIM_AFTER)
            return claim.lease
        if not claim.waiting:
            return AttemptEnd.HELD
        again = True
        time.sleep(_ASK_EVERY)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A replica that lived when the shard came to it: whatever kills it later may be the shard's doing.

    Its engine runs ``seqs`` requests at a time. ``slots`` shards share it, and the bytes that it may hold.
    """

    client: ReplicaClient
    node: str | None
    host: str
    seqs: int
    slots: int

    @classmethod
    def of(cls, work: OpenWork, lease: ShardLease) -> Place | None:
        """The replica that a lease names; None where it is gone, and the shard is given back."""
        name = lease.replica or ""
        row = work.store.replica(lease.job_id, name)
        client = _found(work, name) if row is not None else None
        if row is None or client is None:
            work.store.replica_gone(lease.job_id, name)
            gone = "the replica was gone before it began"
            work.store.release_shard(lease, cause=AttemptCause.NOT_THERE, detail=gone)
            return None
        work.store.note_attempt(lease, node=row.node)
        return cls(
            client=client, node=row.node, host=row.host or "its node", seqs=row.max_num_seqs, slots=row.slots
        )


def _found(work: OpenWork, name: str) -> ReplicaClient | None:
    """The replica, where it lives."""
    try:
        client = work.replicas.find(name)
        client.check()
    except EngineError:
        return None
    return client
