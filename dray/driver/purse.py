"""A job's deadline and its money: what is spent, what can be met, and how many replicas that asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dray.account import account_of
from dray.cluster.base import Node
from dray.driver.capacity_policy import Decision, Situation, SpotHistory, decide
from dray.driver.events import Event, Outlook
from dray.driver.growth import Load, Wish
from dray.driver.ledger import Ledger
from dray.driver.rented import Offer, Rental
from dray.errors import ClusterError, ConfigError, JobPausedError
from dray.job.capacity_notes import KEPT, MOST, decisions_of
from dray.job.opening import OpenJob
from dray.job.request import deadline_seconds
from dray.store import Store

_HOUR = 3600.0


class Purse:
    """Counts what replicas cost, and heeds deadline and budget. Without either it does nothing."""

    def __init__(
        self, job: OpenJob, ledger: Ledger, emit: Callable[[Event], None], rental: Rental | None = None
    ) -> None:
        request = job.settings.request
        self._deadline = deadline_seconds(request.deadline)
        self._budget = request.budget
        if self._budget is not None and rental is None and not ledger.priced:
            raise ConfigError(
                "a budget needs the price of a node, and dray knows none for this cluster's: give "
                "--price, the dollars that one costs an hour"
            )
        self._job = job
        self._ledger = ledger
        self._emit = emit
        self._rental = rental
        self._history = SpotHistory()
        self._earlier: float | None = None  # dollars of earlier runs
        self._created = 0.0
        self._looked: float | None = None
        self._desired: tuple[int, int] | None = None
        self._said: object = None
        self._notes: list[dict[str, Any]] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to heed."""
        return self._deadline is None and self._budget is None and self._rental is None

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
        self, store: Store, load: Load, nodes: Collection[str], *, most: int, start_seconds: float
    ) -> Wish | None:
        """What deadline and budget ask for; None where they leave the number of replicas open.

        ``nodes`` are those that replicas are on.

        Raises:
            StoreError: it is away.
            JobPausedError: the budget is spent.
        """
        if self.idle:
            return None
        self._begin(store)
        spent = (self._earlier or 0.0) + self._ledger.dollars()
        if self._budget is not None and spent >= self._budget:
            raise JobPausedError(
                f"the budget of ${self._budget:,.2f} is spent; finished rows are kept: run the same job with "
                "a higher --budget, and it goes on"
            )
        offer = self._offer(load, nodes)
        step = self._step(offer)
        if load.work is None or offer is None:
            return None
        now = Situation(
            left=load.work,
            rate=1.0,
            elapsed=store.now() - self._created,
            deadline=self._deadline,
            cold_start=start_seconds,
            step=step,
            most=most,
            spot=offer.spot,
            on_demand=offer.on_demand,
            spot_to_be_had=offer.spot_to_be_had,
            spot_expected=self._history.expected(most) if self._rental is not None else 0.0,
            spot_price=offer.spot_price,
            on_demand_price=offer.on_demand_price,
            budget=self._budget,
            spent=spent,
        )
        decision = decide(now)
        if self._rental is None:
            self._look_ahead(store, load, now)
            return self._in_time(load, now, decision)
        self._rent(store, self._rental, decision)
        return Wish(replicas=max(decision.replicas, 1), reason=decision.reason)

    # -- what there is ------------------------------------------------------------------------

    def _begin(self, store: Store) -> None:
        """Once: what earlier runs decided and spent."""
        if self._earlier is None:
            known = store.get_job(self._job.job_id)
            epoch = self._job.lease.epoch
            spans = [span for span in store.spans(known.job_id) if span.epoch != epoch]
            self._created, self._notes = known.created_at, decisions_of(known)
            self._earlier = account_of([span for span in spans if span.price is not None]).dollars or 0.0

    def _offer(self, load: Load, nodes: Collection[str]) -> Offer | None:
        """What is rented; or the nodes as they are, for as long as the job needs them."""
        if self._rental is not None:
            try:
                return self._rental.offer()
            except ClusterError:  # asked again in the next look
                return None
        each = (self._ledger.hourly(nodes) or 0.0) / max(load.ready, 1)
        return Offer(spot_price=each, on_demand_price=each, spot=0, on_demand=load.ready, spot_to_be_had=0)

    def _step(self, offer: Offer | None) -> float:
        """Seconds since the last look, to which the next will be about as far."""
        now = time.monotonic()
        seconds = now - (now if self._looked is None else self._looked)
        self._looked = now
        if offer is not None and self._rental is not None and self._desired is not None:
            self._history.add(wanted=self._desired[0], had=offer.spot, seconds=seconds)
        return max(seconds, 0.1)

    # -- what follows ---------------------------------------------------------------------------

    def _look_ahead(self, store: Store, load: Load, now: Situation) -> None:
        """Say whether deadline and budget will be met, when that changes."""
        left = load.seconds_left or 0.0
        late = None if now.deadline is None else now.elapsed + left > now.deadline
        cost = now.work * now.on_demand_price / _HOUR
        over = None if now.budget is None else now.spent + cost > now.budget
        if (late, over) == self._said:
            return
        self._said = late, over
        outlook = Outlook(
            seconds_left=left,
            deadline_in=None if now.deadline is None else now.deadline - now.elapsed,
            dollars_left=cost if now.on_demand_price else None,
            budget_left=None if now.budget is None else now.budget - now.spent,
        )
        self._emit(outlook)
        self.note(store, outlook.text)

    def _in_time(self, load: Load, now: Situation, decision: Decision) -> Wish | None:
        """More replicas, where the deadline needs them: fewer are no matter of the deadline."""
        if now.deadline is None or decision.replicas <= load.replicas or not load.waiting:
            return None
        return Wish(replicas=decision.replicas, reason=decision.reason)

    def _rent(self, store: Store, rental: Rental, decision: Decision) -> None:
        counts = decision.spot, decision.on_demand
        if counts == self._desired:
            return
        try:
            rental.desire(spot=decision.spot, on_demand=decision.on_demand)
        except ClusterError:
            return
        self._desired = counts
        self.note(store, decision.reason)
