"""A job's deadline and its money: what is spent, what is left to do, and whether both will be met."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dray.cluster.base import Node
from dray.driver.capacity.growth import Load
from dray.driver.capacity.policy import Situation, is_spent
from dray.driver.capacity.spent import dollars_of, spent_error
from dray.driver.capacity.work_left import work_of
from dray.driver.events import Event, Outlook, Warned
from dray.driver.ledger import Ledger
from dray.errors import ConfigError
from dray.job.ending.capacity_notes import KEPT, MOST, decisions_of
from dray.job.open_job import OpenJob
from dray.job.options.request import deadline_seconds
from dray.job.pricing import UNPRICED
from dray.job.spent_budget import SPENT
from dray.store import Store

_HOUR = 3600.0
_LONGEST_STEP = 60.0
"""Seconds. Looks are farther apart while the store is away; what that time cost is in the account already."""

_CORRECTION = 30.0
"""Seconds. An outlook is corrected no sooner and for no less; each correction waits twice as long."""


class Purse:
    """Counts what the job's nodes cost, and heeds deadline and budget.

    Raises:
        ConfigError: there is a budget, and no price by which to count.
    """

    def __init__(self, job: OpenJob, ledger: Ledger, emit: Callable[[Event], None]) -> None:
        request = job.settings.request
        self._deadline = deadline_seconds(request.deadline)
        self._budget = request.budget
        if self._budget is not None and not ledger.priced:
            raise ConfigError(UNPRICED)
        self._job = job
        self._ledger = ledger
        self._emit = emit
        self._earlier: float | None = None  # dollars of earlier runs
        self._created = 0.0
        self._looked: float | None = None
        self._said: tuple[bool | None, bool | None] | None = None
        self._ends = self._correct_at = 0.0  # in seconds since the job was created, as was said last
        self._patience = _CORRECTION
        self._notes: list[dict[str, Any]] = []
        self._unpriced: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to heed."""
        return self._deadline is None and self._budget is None

    def meet(self, nodes: Sequence[Node]) -> None:
        """These nodes are in the cluster now."""
        self._ledger.meet(nodes)

    def note(self, store: Store, line: str) -> None:
        """Keep a decision where the report finds it.

        Raises:
            StoreError: it is away.
        """
        self._begin(store)
        self._notes = [*self._notes, {"at": store.now(), "line": line}][-MOST:]
        store.merge_job_info(self._job.lease, {KEPT: self._notes})

    def look(
        self,
        store: Store,
        load: Load,
        nodes: Collection[str],
        working: Sequence[Collection[str]],
        *,
        most: int,
        start_seconds: float,
    ) -> Situation | None:
        """How the job stands; None while nothing is known of what is left.

        ``nodes`` are those of all its replicas, ``working`` those of each that can take work, or
        else of each.

        Raises:
            StoreError: it is away.
            JobBlockedError: the budget is spent.
        """
        self._begin(store)
        hourly = 0.0 if self._budget is None else self._ledger.hourly(nodes)
        spent, step = self._spent(nodes), self._step()
        over = is_spent(budget=self._budget, spent=spent, step_cost=hourly * step / _HOUR)
        if over and self._has_work(store):
            store.merge_job_info(self._job.lease, {SPENT: self._budget})
            raise spent_error(self._job)
        if load.work is None:
            return None
        now = Situation(
            left=load.work,
            rate=1.0,
            elapsed=store.now() - self._created,
            deadline=self._deadline,
            cold_start=start_seconds,
            step=step,
            most=most,
            on_demand=load.ready,
            on_demand_price=0.0 if self._budget is None else self.hourly(working),
            budget=self._budget,
            spent=spent,
        )
        self._look_ahead(store, load, now)
        return now

    def hourly(self, replicas: Sequence[Collection[str]], *, spot: bool | None = None) -> float:
        """Dollars that a replica costs an hour, on average, given the nodes of each.

        With ``spot``, what nodes of their types cost as spot, or on demand.
        """
        nodes = {node for each in replicas for node in each}
        return self._ledger.hourly(nodes, spot=spot) / len(replicas) if replicas else 0.0

    # -- what there is ------------------------------------------------------------------------

    def _begin(self, store: Store) -> None:
        """Once: what earlier runs decided and spent."""
        if self._earlier is None:
            known = store.get_job(self._job.job_id)
            epoch = self._job.lease.epoch
            spans = [span for span in store.spans(known.job_id) if span.epoch != epoch]
            self._created, self._notes = known.created_at, decisions_of(known)
            self._earlier, whole = dollars_of(self._job, spans)
            if self._budget is not None and not whole:
                told = "the budget leaves out earlier runs of the job on nodes for which dray knew no price"
                self._emit(Warned(line=f"{told}; --price gives one for all nodes"))

    def _spent(self, nodes: Collection[str]) -> float:
        """Dollars so far, where there is a budget; says which nodes it cannot count."""
        if self._budget is None:
            return 0.0
        unpriced = self._ledger.unpriced(nodes)
        if unpriced - self._unpriced:
            self._unpriced |= unpriced
            told = f"the budget does not count {', '.join(sorted(unpriced))}: dray knows no price for it"
            self._emit(Warned(line=f"{told}; --price gives one for all nodes"))
        return (self._earlier or 0.0) + self._ledger.dollars()

    def _has_work(self, store: Store) -> bool:
        """Whether a shard is open now: no budget is to keep a finished job from its files."""
        work = work_of(store.shards(self._job.job_id), store.now())
        return work.waiting + work.running > 0

    def _step(self) -> float:
        """Seconds since the last look, to which the next will be about as far."""
        now = time.monotonic()
        seconds = now - (now if self._looked is None else self._looked)
        self._looked = now
        return min(max(seconds, 0.1), _LONGEST_STEP)

    def _look_ahead(self, store: Store, load: Load, now: Situation) -> None:
        """Say whether deadline and budget will be met, when that changes, or was said with a wrong time."""
        left = load.seconds_left or 0.0
        late = None if now.deadline is None else now.elapsed + left > now.deadline
        cost = now.work * now.on_demand_price / _HOUR
        over = None if now.budget is None else now.spent + cost > now.budget
        changed = (late, over) != self._said
        if self.idle or not (changed or self._was_far_off(now.elapsed, left)):
            return
        self._patience *= 1 if changed else 2
        self._said, self._ends = (late, over), now.elapsed + left
        self._correct_at = now.elapsed + self._patience
        outlook = Outlook(
            seconds_left=left,
            deadline_in=None if now.deadline is None else now.deadline - now.elapsed,
            dollars_left=cost if now.on_demand_price else None,
            budget_left=None if now.budget is None else now.budget - now.spent,
        )
        self._emit(outlook)
        self.note(store, outlook.text)

    def _was_far_off(self, elapsed: float, left: float) -> bool:
        """Whether what was said last of the job's end is wrong by more than half of what is left."""
        expected = self._ends - elapsed
        off = abs(left - expected)
        return elapsed >= self._correct_at and off > max(left, expected) / 2 and off > _CORRECTION
