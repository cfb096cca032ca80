"""A job's deadline and its money: what is spent, what can be met, and how many replicas that asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dray.driver.capacity_policy import Decision, Rule, Situation, SpotHistory, decide
from dray.driver.events import Event, Outlook
from dray.driver.growth import Load, Wish
from dray.driver.rented import Offer, Rental
from dray.errors import ClusterError, ConfigError, JobPausedError
from dray.job.capacity_notes import KEPT, spent_of, with_note
from dray.job.opening import OpenJob
from dray.job.request import deadline_seconds
from dray.job.settings import JobSettings
from dray.store import Store

_HOUR = 3600.0
_KEEP_EVERY = 10.0  # seconds between two writes of what is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asks for: seconds since the job was created, dollars, and dollars of a replica's hour."""

    deadline: float | None = None
    budget: float | None = None
    price: float | None = None

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self.deadline is not None or self.budget is not None


def wishes_of(settings: JobSettings) -> Wishes:
    """What the job's options say."""
    request = settings.request
    return Wishes(
        deadline=deadline_seconds(request.deadline),
        budget=request.budget,
        price=request.engine.replica_price,
    )


class Purse:
    """Counts what replicas cost, and heeds deadline and budget. Without either it does nothing."""

    def __init__(
        self, job: OpenJob, wishes: Wishes, emit: Callable[[Event], None], rental: Rental | None = None
    ) -> None:
        if wishes.budget is not None and wishes.price is None and rental is None:
            raise ConfigError(
                "a budget needs the price of a replica, which this cluster does not tell: give "
                "--replica-price, the dollars that one costs an hour"
            )
        self._job = job
        self._wishes = wishes
        self._emit = emit
        self._rental = rental
        self._history = SpotHistory()
        self._spent = 0.0
        self._created: float | None = None
        self._looked: float | None = None
        self._kept = 0.0
        self._desired: tuple[int, int] | None = None
        self._said: object = None
        self._notes: list[dict[str, Any]] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to heed."""
        return not self._wishes.any and self._rental is None

    def note(self, store: Store, line: str) -> None:
        """Keep a decision where the report finds it.

        Raises:
            StoreError: it is away.
        """
        self._notes.append({"at": store.now(), "line": line})
        self._keep(store)

    def look(self, store: Store, load: Load, *, most: int, start_seconds: float) -> Wish | None:
        """What deadline and budget ask for; None where they leave the number of replicas open.

        Raises:
            StoreError: it is away.
            JobPausedError: the budget is spent.
        """
        if self.idle:
            return None
        self._begin(store)
        offer = self._offer(load)
        step = self._count(load, offer)
        if time.monotonic() - self._kept > _KEEP_EVERY:
            self._keep(store)
        if load.work is None:
            self._refuse_more(offer)
            return None
        situation = self._situation(store, load, offer, step, most=most, start_seconds=start_seconds)
        decision = decide(situation)
        if decision.rule is Rule.SPENT:
            self._refuse_more(offer, at_once=True)
        if self._rental is None or offer is None:
            self._look_ahead(store, load, situation)
            return self._in_time(load, situation, decision)
        self._rent(store, decision)
        return Wish(replicas=max(decision.replicas, 1), reason=decision.reason)

    def close(self, store: Store) -> None:
        """Keep what was spent.

        Raises:
            StoreError: it is away, or another driver has the job.
        """
        if self._looked is not None:
            self._keep(store)

    # -- what there is ------------------------------------------------------------------------

    def _begin(self, store: Store) -> None:
        if self._created is None:
            known = store.get_job(self._job.job_id)
            self._created = known.created_at
            self._spent, self._notes = spent_of(known)

    def _offer(self, load: Load) -> Offer | None:
        if self._rental is not None:
            try:
                return self._rental.offer()
            except ClusterError:  # asked again in the next look
                return None
        price = self._wishes.price or 0.0
        return Offer(
            spot_price=price, on_demand_price=price, spot=0, on_demand=load.replicas, spot_to_be_had=0
        )

    def _count(self, load: Load, offer: Offer | None) -> float:
        """Add what was spent since the last look; the seconds of it."""
        now = time.monotonic()
        seconds = now - (now if self._looked is None else self._looked)
        self._looked = now
        if offer is not None:
            held = offer.spot * offer.spot_price + offer.on_demand * offer.on_demand_price
            self._spent += held * seconds / _HOUR
            if self._rental is not None and self._desired is not None:
                self._history.add(wanted=self._desired[0], had=offer.spot, seconds=seconds)
        return max(seconds, 0.1)

    def _situation(
        self, store: Store, load: Load, offer: Offer | None, step: float, *, most: int, start_seconds: float
    ) -> Situation:
        assert self._created is not None and load.work is not None
        held = offer or Offer(spot_price=0.0, on_demand_price=0.0, spot=0, on_demand=load.ready)
        return Situation(
            left=load.work,
            rate=1.0,
            elapsed=store.now() - self._created,
            deadline=self._wishes.deadline,
            cold_start=start_seconds,
            step=step,
            most=most,
            spot=held.spot,
            on_demand=held.on_demand,
            spot_to_be_had=held.spot_to_be_had,
            spot_expected=self._history.expected(most) if self._rental is not None else 0.0,
            spot_price=held.spot_price,
            on_demand_price=held.on_demand_price,
            budget=self._wishes.budget,
            spent=self._spent,
        )

    # -- what follows ---------------------------------------------------------------------------

    def _refuse_more(self, offer: Offer | None, *, at_once: bool = False) -> None:
        budget = self._wishes.budget
        if budget is not None and (at_once or self._spent >= budget):
            raise JobPausedError(
                f"the budget of ${budget:,.2f} is spent (${self._spent:,.2f}); finished rows are kept: run "
                "the same job with a higher --budget, and it goes on"
            )

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

    def _rent(self, store: Store, decision: Decision) -> None:
        assert self._rental is not None
        counts = decision.spot, decision.on_demand
        if counts == self._desired:
            return
        try:
            self._rental.desire(spot=decision.spot, on_demand=decision.on_demand)
        except ClusterError:
            return
        self._desired = counts
        self.note(store, decision.reason)

    def _keep(self, store: Store) -> None:
        self._begin(store)
        self._kept = time.monotonic()
        store.merge_job_info(self._job.lease, {KEPT: with_note(self._spent, self._notes)})
