"""The job grows, shrinks, and heeds its deadline and budget: looks now and then, decides, and says why."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from dray.driver.capacity.growth import Load, Wish, wanted
from dray.driver.capacity.market import Held, MarketChoice
from dray.driver.capacity.policy import Situation
from dray.driver.capacity.purse import Purse
from dray.driver.capacity.work_left import Rate, Work, work_of
from dray.driver.events import CapacityDecided, CapacityMissing, Event, MarketDecided, NodeLeft
from dray.driver.fleet import Fleet
from dray.driver.intervals import LOOK_SHARE, Intervals
from dray.driver.replicas.handle import ReplicaHandle
from dray.driver.replicas.pool import ReplicaPool
from dray.job.open_job import OpenJob
from dray.job.options.replica_range import ReplicaRange
from dray.store import Store

_USUAL_START = 60.0  # of a replica, until one was seen
_BOOT = 120.0
"""Seconds in which a rented machine joins the cluster: EC2 takes one to two minutes."""


class Scaling:
    """Changes how many replicas the pool has, within ``limits``. ``resized`` is called with the new number.

    Of a job with one number of replicas, no deadline and no budget, it sees only which nodes come and go.
    """

    def __init__(
        self,
        job: OpenJob,
        pool: ReplicaPool,
        fleet: Fleet,
        emit: Callable[[Event], None],
        resized: Callable[[int], None],
        *,
        limits: ReplicaRange,
        purse: Purse,
        intervals: Intervals,
        markets: MarketChoice | None = None,
    ) -> None:
        self._job = job
        self._pool = pool
        self._fleet = fleet
        self._emit = emit
        self._resized = resized
        self._limits = limits
        self._purse = purse
        self._intervals = intervals
        self._markets = markets
        self._in_time = True
        self._hourly = (0.0, 0.0)  # what a replica costs on spot and on demand
        self._rate = Rate()
        self._look_at = 0.0
        self._most_until: tuple[int, float] | None = None  # no more than so many before that time
        self._wait_since: float | None = None
        self._nodes: set[str] = set()  # that replicas were on
        self._spot: set[str] = set()  # nodes, of all that there are

    @property
    def plan(self) -> str | None:
        """How many replicas there may be, to follow on how many start; None where nothing will change."""
        return None if self._limits.fixed else f"up to {self._limits.most} when shards wait"

    @property
    def awaits_spot(self) -> bool:
        """Whether replicas may be missing on purpose: markets are chosen, and the deadline is not over."""
        return self._markets is not None and self._in_time

    def look(self, store: Store) -> None:
        """Look at everything, and do what follows.

        Raises:
            StoreError: it is away; the next call does what is left.
            JobPausedError: the budget is spent.
        """
        if self._limits.fixed and self._purse.idle:
            self._see_changes()
            return
        began = time.monotonic()
        if began < self._look_at:
            return
        self._look(store)
        self._look_at = began + LOOK_SHARE * (time.monotonic() - began)

    def _look(self, store: Store) -> None:
        work = work_of(store.shards(self._job.job_id), store.now())
        load = self._load(work)
        self._see_nodes()
        self._give_up_missing(store, load)
        nodes = self._pool.nodes()
        now = self._purse.look(
            store,
            load,
            nodes,
            self._pool.working_on() or self._pool.held(),
            most=self._most(),
            start_seconds=self._start_seconds(),
        )
        if now is not None and now.deadline is not None:
            self._in_time = now.seconds_left > 0
        self._obey(store, self._patient(load, wanted(load, now, least=self._limits.least)))
        self._choose_market(store, now)

    def _see_changes(self) -> None:
        """The account goes by which nodes come and go. A used node may stay for long: Ray is asked seldom."""
        nodes, now = self._pool.nodes(), time.monotonic()
        if nodes - self._nodes or (nodes != self._nodes and now >= self._look_at):
            self._look_at = now + self._intervals.account
            self._see_nodes()

    def _see_nodes(self) -> None:
        """Nodes join, and an autoscaler ends those on which nothing runs any more."""
        capacity = self._fleet.capacity()
        if capacity is None:
            return
        self._purse.meet(capacity.nodes)
        there = {node.node_id for node in capacity.nodes}
        self._spot = {node.node_id for node in capacity.nodes if node.spot}
        for node in self._nodes - there:
            self._emit(NodeLeft(node=node))
        self._nodes = (self._nodes | self._pool.nodes()) & there

    def _load(self, work: Work) -> Load:
        idle, ready = len(self._pool.idle(self._intervals.shrink)), self._pool.ready()
        self._rate.look(work.left, max(ready - idle, 0))
        each = self._rate.units
        return Load(
            waiting=work.waiting,
            running=work.running,
            replicas=self._pool.lanes,
            ready=ready,
            idle=idle,
            unused=len(self._unused()),
            work=None if each is None else work.left / each,
        )

    def _unused(self) -> list[ReplicaHandle]:
        """Replicas whose machines can be given back: this one, of a cluster of our own, cannot."""
        return [] if self._fleet.info.own else self._pool.unused(self._intervals.shrink)

    def _start_seconds(self) -> float:
        """What one more replica would take. How long others waited for a machine says nothing of it."""
        starts = self._pool.starts()
        seen = median([one.seconds for one in starts]) if starts else _USUAL_START
        return seen if self._markets is None else seen + _BOOT

    def _most(self) -> int:
        """How many replicas there may be at present."""
        if self._most_until is not None and time.monotonic() >= self._most_until[1]:
            self._most_until = None
        return self._limits.most if self._most_until is None else self._most_until[0]

    def _patient(self, load: Load, wish: Wish | None) -> Wish | None:
        """The wish, or None for more replicas while shards have not waited for long."""
        if wish is None or wish.replicas < load.replicas:
            self._wait_since = None
            return wish
        now = time.monotonic()  # shards wait for a moment whenever others end
        self._wait_since = self._wait_since or now
        return wish if now - self._wait_since >= self._intervals.grow else None

    def _give_up_missing(self, store: Store, load: Load) -> None:
        """Go on without replicas that find no place, as far as the job may have fewer.

        Where markets are chosen, replicas wait for spot on purpose: fewer of them could not be made up for
        by machines on demand. They are given up only when no shard waits for them.
        """
        if self._markets is not None and load.waiting:
            return
        missing = self._pool.unplaced(self._intervals.missing)
        spare = min(missing, self._pool.lanes - self._limits.least)
        if spare <= 0:
            return
        reason = self._pool.waiting() or "no place"
        self._pool.resize(self._pool.lanes - spare)
        if self._markets is None:
            self._most_until = self._pool.lanes, time.monotonic() + self._intervals.missing
        event = CapacityMissing(
            missing=spare, replicas=self._pool.lanes, seconds=self._intervals.missing, reason=reason
        )
        self._tell(store, event)

    def _obey(self, store: Store, wish: Wish | None) -> None:
        if wish is None or wish.replicas == self._pool.lanes:
            return
        before = self._pool.lanes
        self._pool.resize(wish.replicas, self._unused())
        if self._pool.lanes != before:
            self._tell(store, CapacityDecided(before=before, replicas=self._pool.lanes, reason=wish.reason))

    def _choose_market(self, store: Store, now: Situation | None) -> None:
        """Say how many replicas may be on demand, where that changes."""
        if self._markets is None:
            return
        on_spot, others = self._by_market()
        spot_price, on_demand_price = self._prices(on_spot, others)
        held = Held(
            wanted=self._pool.lanes,
            spot=len(on_spot),
            on_demand=len(others),
            coming=max(self._pool.lanes - len(on_spot) - len(others) - self._pool.unplaced(0.0), 0),
            spot_price=spot_price,
            on_demand_price=on_demand_price,
        )
        chosen = self._markets.look(now, held, time.monotonic())
        if chosen is not None:
            self._emit(MarketDecided(on_demand=chosen.on_demand, reason=chosen.reason))
            self._purse.note(store, chosen.reason)

    def _prices(self, on_spot: list[tuple[str, ...]], others: list[tuple[str, ...]]) -> tuple[float, float]:
        """Dollars that a replica costs an hour on spot and on demand, as far as known; those of before else.

        Where none is on one of them, it is what the machines of the other would cost there: a budget is to
        hold back the first machine on demand, too.
        """
        if on_spot or others:
            spot = self._purse.hourly(on_spot or others, spot=True)
            self._hourly = spot, self._purse.hourly(others or on_spot, spot=False)
        return self._hourly

    def _by_market(self) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """The nodes of each replica that can take work: of those that spot can end, and of the others."""
        working = self._pool.working_on()
        on_spot = [nodes for nodes in working if not self._spot.isdisjoint(nodes)]
        return on_spot, [nodes for nodes in working if self._spot.isdisjoint(nodes)]

    def _tell(self, store: Store, event: CapacityDecided | CapacityMissing) -> None:
        self._resized(self._pool.lanes)
        self._emit(event)
        self._purse.note(store, event.text)
