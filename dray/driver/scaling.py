"""The job grows, shrinks, and heeds its deadline and budget: looks now and then, decides, and says why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from dray.cluster.capacity import Capacity
from dray.driver.events import CapacityDecided, CapacityMissing, Event, NodeLeft
from dray.driver.fleet import Fleet
from dray.driver.growth import Load, Wish, wanted
from dray.driver.intervals import Intervals
from dray.driver.pool import ReplicaPool
from dray.driver.purse import Purse
from dray.driver.work_left import Rate, Work, work_of
from dray.job.opening import OpenJob
from dray.job.settings import JobSettings
from dray.store import Store

_USUAL_START = 60.0  # of a replica, until one was seen
_LOOK_SHARE = 20  # a pause is at least so many times as long as a look at all shards took


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Replicas that a job has at least and at most; None for as many as its nodes hold, also later ones."""

    least: int
    most: int | None

    @property
    def fixed(self) -> bool:
        """Whether the number never changes."""
        return self.least == self.most


def limits_of(settings: JobSettings, usual: int, *, own: bool, gpus: bool) -> Limits:
    """The limits of a job. ``usual`` is how many its nodes hold where the user gives no number.

    ``own`` is a cluster of ours on this machine: no node comes to it. ``gpus``: replicas ask for GPUs.
    """
    most = settings.request.engine.max_replicas
    least = settings.replicas or (usual if most is None else min(usual, most))
    follows = settings.replicas is None and gpus and not own
    return Limits(least=least, most=most or (None if follows else least))


def places(capacity: Capacity, cpus: float, gpus: float) -> int:
    """How many replicas, each with so much, the nodes hold when nothing else runs there."""
    found = 0
    for room in capacity.rooms:
        each = [int(have // ask + 1e-6) for have, ask in ((room.cpus, cpus), (room.gpus, gpus)) if ask]
        found += min(each, default=0)
    return found


class Scaling:
    """Changes how many replicas the pool has. ``resized`` is called with the new number."""

    def __init__(
        self,
        job: OpenJob,
        pool: ReplicaPool,
        fleet: Fleet,
        emit: Callable[[Event], None],
        resized: Callable[[int], None],
        *,
        limits: Limits,
        purse: Purse,
        intervals: Intervals,
    ) -> None:
        self._job = job
        self._pool = pool
        self._fleet = fleet
        self._emit = emit
        self._resized = resized
        self._limits = limits
        self._purse = purse
        self._intervals = intervals
        self._rate = Rate()
        self._look_at = 0.0
        self._most_until: tuple[int, float] | None = None  # no more than so many before that time
        self._wait_since: float | None = None
        self._nodes: set[str] = set()  # that replicas were on

    @property
    def plan(self) -> str | None:
        """How many replicas there may be, to follow on how many start; None where nothing will change."""
        if self._limits.fixed:
            return None
        if self._limits.most is None:
            return "more when nodes for them join"
        return f"up to {self._limits.most} when shards wait"

    def look(self, store: Store) -> None:
        """Look at everything, and do what follows.

        Raises:
            StoreError: it is away; the next call does what is left.
            JobPausedError: the budget is spent.
        """
        if self._limits.fixed and self._purse.idle:
            return
        began = time.monotonic()
        if began < self._look_at:
            return
        work = work_of(store.shards(self._job.job_id), store.now())
        self._look_at = began + _LOOK_SHARE * (time.monotonic() - began)
        load = self._load(work)
        self._see_nodes()
        self._give_up_missing(store)
        nodes = self._pool.nodes()
        wish = self._purse.look(store, load, nodes, most=self._most(), start_seconds=self._start_seconds())
        self._obey(store, wish or self._grown(load))

    def _see_nodes(self) -> None:
        """Nodes join, and an autoscaler ends those on which nothing runs any more."""
        capacity = self._fleet.capacity()
        if capacity is None:
            return
        self._purse.meet(capacity.nodes)
        there = {node.node_id for node in capacity.nodes}
        for node in self._nodes - there:
            self._emit(NodeLeft(node=node))
        self._nodes = (self._nodes | self._pool.nodes()) & there

    def _load(self, work: Work) -> Load:
        idle = len(self._pool.idle(self._intervals.shrink))
        ready = self._pool.ready()
        self._rate.look(work.left, max(ready - idle, 0))
        each = self._rate.units
        return Load(
            waiting=work.waiting,
            running=work.running,
            replicas=self._pool.lanes,
            ready=ready,
            idle=idle,
            work=None if each is None else work.left / each,
        )

    def _start_seconds(self) -> float:
        starts = self._pool.starts()
        return median([one.ready - one.began for one in starts]) if starts else _USUAL_START

    def _most(self) -> int:
        """As many as may be at present."""
        most = self._limits.most
        if most is None:
            capacity = self._fleet.capacity()
            ask = self._pool.ask
            held = 0 if capacity is None else places(capacity, ask.cpus, ask.gpus)
            most = max(self._limits.least, self._pool.lanes, held)
        if self._most_until is not None:
            if time.monotonic() < self._most_until[1]:
                return min(most, self._most_until[0])
            self._most_until = None
        return most

    def _grown(self, load: Load) -> Wish | None:
        wish = wanted(
            load,
            least=self._limits.least,
            most=self._most(),
            start_seconds=self._start_seconds(),
        )
        if wish is None or wish.replicas < load.replicas:
            self._wait_since = None
            return wish
        now = time.monotonic()  # shards wait for a moment whenever others end
        self._wait_since = self._wait_since or now
        return wish if now - self._wait_since >= self._intervals.grow else None

    def _give_up_missing(self, store: Store) -> None:
        """Go on without replicas that find no place, as far as the job may have fewer."""
        missing = self._pool.unplaced(self._intervals.missing)
        spare = min(missing, self._pool.lanes - self._limits.least)
        if spare <= 0:
            return
        lanes = self._pool.lanes
        reason = self._pool.waiting() or "no place"
        self._pool.resize(lanes - spare)
        self._most_until = self._pool.lanes, time.monotonic() + self._intervals.missing
        event = CapacityMissing(
            missing=spare, replicas=self._pool.lanes, seconds=self._intervals.missing, reason=reason
        )
        self._tell(store, event)

    def _obey(self, store: Store, wish: Wish | None) -> None:
        if wish is None or wish.replicas == self._pool.lanes:
            return
        before = self._pool.lanes
        self._pool.resize(wish.replicas)
        if self._pool.lanes != before:
            self._tell(store, CapacityDecided(before=before, replicas=self._pool.lanes, reason=wish.reason))

    def _tell(self, store: Store, event: CapacityDecided | CapacityMissing) -> None:
        self._resized(self._pool.lanes)
        self._emit(event)
        self._purse.note(store, event.text)
