"""Why replicas that are ready have no shard, and how many shard tasks may run at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dray.cluster.base import STABLE_RESOURCE, ClusterInfo
from dray.driver.events import Event, ReplicasIdle, Warned
from dray.driver.fleet import Fleet
from dray.driver.intervals import LOOK_SHARE
from dray.driver.replicas.pool import ReplicaPool
from dray.driver.shard_tasks.slots import LEAST_SLOTS, MOST_SLOTS
from dray.errors import StoreError
from dray.job.open_job import OpenJob, reopen
from dray.job.options.replica_range import ReplicaRange
from dray.store import ConnectionLimit, Shard, ShardState, Store
from dray.wording import plural

TASK_BYTES = 200e6
"""Private memory of a shard task's process: 164 MB were measured on PostgreSQL, 208 MB on SQLite."""

MOST_STANDBY = 8
"""Shard tasks that wait for a place at most: each asks the store 5 times a second."""

_TELL_EVERY = 60.0  # seconds between two lines that say so, for one reason
_MEMORY_SHARE = 0.5  # of a stable node's memory for shard tasks: the driver and Ray's head are there, too
_OTHER_CONNECTIONS = 10  # of the database: the driver's, its lease's, and those of people who look


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Shard tasks that may run at a time; ``told`` names the limit, where it leaves replicas idle."""

    tasks: int
    told: str | None = None


def standby_of(lanes: int) -> int:
    """Shard tasks that wait beside those with a place, so that the next shard begins as soon as one ends."""
    return min(lanes, MOST_STANDBY)


def bound_of(*, lanes: int, cpus: float, memory: float, connections: ConnectionLimit | None) -> Bound:
    """How many shard tasks there may be.

    ``cpus`` and ``memory`` are those of the stable nodes, in cores and bytes (0: unknown), ``connections``
    what the database leaves to the job. The cores bound only what goes beyond the least that replicas need: a
    process takes one or two seconds of a core to start.
    """
    fewest, most = (slots * lanes + standby_of(lanes) for slots in (LEAST_SLOTS, MOST_SLOTS))
    bounds = [Bound(tasks=max(fewest, min(most, int(cpus))))]
    if memory:
        room = max(int(_MEMORY_SHARE * memory / TASK_BYTES), LEAST_SLOTS)
        told = f"the memory of the stable nodes ({memory / 2**30:.0f} GiB) holds {room} shard tasks"
        bounds.append(Bound(tasks=room, told=f"{told}: mark more nodes {STABLE_RESOURCE}, or larger ones"))
    if connections is not None:
        free = max(connections.most - _OTHER_CONNECTIONS, LEAST_SLOTS)
        beside = f" beside {connections.others} of other programs" if connections.others else ""
        told = f"PostgreSQL allows {connections.most} connections{beside}, one for each shard task"
        bounds.append(Bound(tasks=free, told=f"{told}: raise {connections.by}"))
    least = min(bounds, key=lambda one: one.tasks)
    return least if least.tasks < lanes else Bound(tasks=least.tasks)


def bound_tasks(job: OpenJob, lanes: int, cluster: ClusterInfo, emit: Callable[[Event], None]) -> Bound:
    """How many shard tasks may run at a time; tells what binds, where that leaves replicas without work."""
    connections = None
    with suppress(StoreError), reopen(job) as store:
        connections = store.most_connections()
    stable = [node for node in cluster.nodes if node.stable]
    cpus, memory = sum(node.cpus for node in stable), sum(node.memory for node in stable)
    bound = bound_of(lanes=lanes, cpus=cpus, memory=memory, connections=connections)
    if bound.told is not None:
        emit(Warned(line=f"{lanes} replicas, but {bound.told}"))
    return bound


def feedable(
    job: OpenJob, limits: ReplicaRange, cluster: ClusterInfo, emit: Callable[[Event], None]
) -> ReplicaRange:
    """Without replicas that no shard task could feed: they would be paid for, and stay idle."""
    if limits.fixed:
        return limits
    bound = bound_tasks(job, limits.most, cluster, emit)
    return ReplicaRange(limits.least, max(limits.least, min(limits.most, bound.tasks)))


def why_idle(
    left: Sequence[Shard],
    *,
    whole: int,
    lanes: int,
    bound: str | None,
    no_place: str | None,
    no_connection: str | None = None,
) -> str | None:
    """Why ready replicas have nothing to do; None where each shard that is open may be about to come to one.

    ``left`` are the shards that are open, of ``whole`` ones in all. ``bound`` says why no more shard tasks
    run, ``no_place`` why Ray starts none, ``no_connection`` why the store takes none, where that is so.
    """
    if any(shard.state is ShardState.PENDING for shard in left):
        return no_connection or no_place or bound
    if not left:
        return None
    if whole < lanes:
        return f"the job has {plural(whole, 'shard')}, and each runs on one replica"
    return f"{plural(len(left), 'shard')} left, and each runs on one replica"


class IdleWatch:
    """Says which replicas have been ready without work for ``seconds``, and why: in log and store."""

    def __init__(
        self,
        job_id: str,
        pool: ReplicaPool,
        fleet: Fleet,
        bound: Bound,
        emit: Callable[[Event], None],
        seconds: float,
    ) -> None:
        self._job_id = job_id
        self._pool = pool
        self._fleet = fleet
        self._bound = bound
        self._emit = emit
        self._seconds = seconds
        self._reason: str | None = None
        self._told_at = self._look_at = 0.0  # monotonic

    def rebind(self, bound: Bound) -> None:
        """Bound how many shard tasks may run from now on."""
        self._bound = bound

    def look(self, store: Store, no_connection: str | None = None) -> None:
        """Look, and tell what is new; the same again now and then. After a long look comes a pause.

        ``no_connection`` says why shard tasks have no connection to the store, where that is so.

        Raises:
            StoreError: it is away.
        """
        idle = self._pool.idle(self._seconds)
        began = time.monotonic()
        if not idle or began < self._look_at:
            return
        reason = why_idle(
            store.shards(self._job_id, open_only=True),
            whole=store.whole_shards(self._job_id),
            lanes=self._pool.lanes,
            bound=self._bound.told,
            no_place=self._fleet.no_place_for_tasks(),
            no_connection=no_connection,
        )
        self._look_at = began + LOOK_SHARE * (time.monotonic() - began)
        for replica in idle:
            self._pool.note(replica, reason and f"has no work: {reason}")
        now = time.monotonic()
        if reason is not None and (reason != self._reason or now - self._told_at > _TELL_EVERY):
            self._reason, self._told_at = reason, now
            self._emit(ReplicasIdle(count=len(idle), lanes=self._pool.lanes, reason=reason))
