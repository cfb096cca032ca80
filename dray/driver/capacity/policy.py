"""How many replicas a job with a deadline and a budget is to hold, and of which kind: arithmetic alone.

The driver asks :func:`of_one_kind` how many there are to be (growth.py, beside this), and :func:`is_spent`
whether the budget is spent. On a cluster whose machines dray rents, it also asks :func:`decide` how many of
them may be on demand (market.py); other clusters cannot be asked for either kind.

The policy is that of Uniform Progress ("Can't Be Late", NSDI'24) for work that can be divided. Work is in
predicted units of cost, of which a replica answers ``rate`` a second.

- Spot is taken whenever there is some: a replica that is interrupted loses its start, and no row.
- While there is time to lose, the job waits for spot. When most of the replicas are needed all the time,
  on-demand replicas make up for what spot is not expected to give, by what it gave so far.
- The last moment: when the time that may still be lost is about to be too short for on-demand replicas to
  start and do the rest, they start.
- Hysteresis: on-demand replicas stay until the job is ahead by some starts.
- Once the deadline is over, there is nothing to hurry for: on demand only takes the place of spot that is not
  to be had, as in a job without a deadline.
- The budget goes before the deadline.

:class:`SpotHistory` keeps what spot gave. Seconds and dollars; prices are for a replica and an hour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

_HOUR = 3600.0
_HYSTERESIS = 4.0
"""Cold starts by which a job is to be ahead before on-demand replicas are given back."""
_START_SHARE = 0.1
"""Most of the work that is left that starts of replicas may cost: more replicas than that do not pay."""
_PATIENCE = 0.8
"""Share of the useful replicas that must be needed all the time before on-demand ones make up for spot."""
_SURE = 1.1
"""What is left may take so much longer than predicted, and the deadline still holds."""
_WORTH = 1.0
"""A replica starts only if the others would need as many cold starts for the rest."""


class Rule(StrEnum):
    """Why so many replicas are wanted."""

    DONE = "nothing is left to answer"
    SPENT = "the budget is spent"
    BUDGET = "the budget does not reach for on-demand replicas"
    NO_DEADLINE = "no deadline is set, so spot alone is used"
    AHEAD = "spot is expected to be enough"
    BEHIND = "spot is not expected to be enough"
    HOLD = "on-demand replicas stay until the job is ahead by some starts"
    LAST_MOMENT = "no time may be lost any more"
    UNKNOWN = "no row is answered yet, and no replica works or comes"
    TOO_LATE = "the deadline cannot be met with as many replicas as are allowed"
    OVER = "the deadline is over, so on-demand replicas only make up for spot that is not to be had"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job as it stands.

    ``spot`` and ``on_demand`` are replicas that work.
    ``spot_to_be_had`` is how many spot replicas can be held at present in all, None where that is not known;
    ``spot_expected`` how many there will be on the average. ``step`` is the time to the next decision.
    ``deadline`` and ``elapsed`` count from the job's beginning; ``budget`` and ``spent`` are dollars.
    """

    left: float
    rate: float
    elapsed: float
    deadline: float | None
    cold_start: float
    step: float
    most: int
    spot: int = 0
    on_demand: int = 0
    spot_to_be_had: int | None = None
    spot_expected: float = 0.0
    spot_price: float = 0.0
    on_demand_price: float = 0.0
    budget: float | None = None
    spent: float = 0.0

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.cold_start < 0 or self.step <= 0 or self.most < 1:
            raise ValueError("rate, step and most are more than 0, and cold_start is not less")

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        assert self.deadline is not None
        return max(self.deadline - self.elapsed, 0.0)

    @property
    def is_over(self) -> bool:
        """Whether there was a deadline, and it has passed."""
        return self.deadline is not None and self.elapsed >= self.deadline

    @property
    def work(self) -> float:
        """What is left, in seconds of one replica."""
        return self.left / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityDecision:
    """Replicas to hold from now on, and why. ``reason`` is a line for people."""

    spot: int
    on_demand: int
    rule: Rule
    reason: str

    @property
    def replicas(self) -> int:
        """Spot and on-demand replicas together."""
        return self.spot + self.on_demand


def decide(now: Situation) -> CapacityDecision:
    """What to hold from now on."""
    if now.left <= 0:
        return _told(now, 0, 0, Rule.DONE)
    if is_spent(budget=now.budget, spent=now.spent, step_cost=_step_cost(now)):
        return _told(now, 0, 0, Rule.SPENT)
    useful = most_useful(now)
    if now.deadline is None:
        return _told(now, _spot(now, useful), 0, Rule.NO_DEADLINE)
    spot = _spot(now, useful)
    on_demand, rule = _on_demand(now, useful, spot)
    affordable = _affordable(now)
    if on_demand > affordable:
        return _told(now, min(spot, useful - affordable), affordable, Rule.BUDGET)
    return _told(now, min(spot, useful - on_demand), on_demand, rule)


def is_spent(*, budget: float | None, spent: float, step_cost: float) -> bool:
    """Whether what is held until the next decision would cost more than the budget has left."""
    return budget is not None and spent + step_cost > budget


def most_useful(now: Situation) -> int:
    """Replicas beyond which more starts would cost more than they bring, or more are not allowed.

    As many as the deadline needs are useful in any case.
    """
    bearable = _START_SHARE * now.work / max(now.cold_start, 1.0)
    useful = max(int(min(bearable, now.most)), 1)
    working = now.spot + now.on_demand
    if now.deadline is not None and not now.is_over:
        useful = max(useful, _needed(now))
    return max(min(useful, now.most), min(working, now.most), 1)


def of_one_kind(now: Situation) -> int:
    """Replicas to hold where machines are of one kind: those that pay, or more if the deadline takes more."""
    working = max(now.spot + now.on_demand, 1)
    if now.work <= _WORTH * now.cold_start * working:
        return working
    hurries = now.deadline is not None and not now.is_over
    late = hurries and _SURE * now.work / working > now.seconds_left
    return most_useful(now if late else replace(now, deadline=None))


def _needed(now: Situation) -> int:
    """Replicas that finish in time when they start at once, with a start to spare."""
    time = now.seconds_left - 2 * now.cold_start
    if time <= 0 or now.work > now.most * time:
        return now.most
    return math.ceil(now.work / time - 1e-9)


def _spot(now: Situation, useful: int) -> int:
    return useful if now.spot_to_be_had is None else min(now.spot_to_be_had, useful)


def _on_demand(now: Situation, useful: int, spot: int) -> tuple[int, Rule]:
    """How many on-demand replicas to have beside ``spot``, at most ``useful`` together, and by which rule."""
    if now.is_over:
        return useful - spot, Rule.OVER
    least = _for_the_last_moment(now, useful, spot)
    if least is None:
        kept = min(now.spot, spot)
        return max(useful - kept, 0), Rule.TOO_LATE
    expected = _beside_the_expected(now, useful, spot, starts=0.0)
    wanted = max(least, min(expected, useful - spot))
    if wanted >= now.on_demand:
        if not wanted:
            return 0, Rule.AHEAD
        return wanted, Rule.LAST_MOMENT if least >= wanted else Rule.BEHIND
    held = min(_beside_the_expected(now, useful, spot, starts=_HYSTERESIS), now.on_demand, useful - spot)
    if held > wanted:
        return held, Rule.HOLD
    return wanted, Rule.AHEAD if not wanted else Rule.LAST_MOMENT if least >= wanted else Rule.BEHIND


def _beside_the_expected(now: Situation, useful: int, spot: int, *, starts: float) -> int:
    """How many on-demand replicas to have, if spot gives what it has given, and ``starts`` are to spare."""
    time = now.seconds_left - (1 + starts) * now.cold_start
    needed = now.work / time if time > 0 else float(now.most)
    enough = max(now.spot_expected, spot, _PATIENCE * useful)
    return max(math.ceil(needed - enough - 1e-9), 0)


def _for_the_last_moment(now: Situation, useful: int, spot: int) -> int | None:
    """The fewest on-demand replicas with which the deadline holds though all spot goes after this step.

    None where none are enough: the deadline cannot be promised any more.
    """
    slack = useful * now.seconds_left - now.work  # seconds of replicas that may be lost
    for on_demand in range(useful + 1):
        kept = min(now.spot, spot, useful - on_demand) + min(now.on_demand, on_demand)
        started = max(on_demand - now.on_demand, 0)
        lost = (useful - kept) * now.step + started * max(now.cold_start - now.step, 0.0)
        if slack - lost >= (useful - on_demand) * now.cold_start - 1e-6:
            return on_demand
    return None


def _step_cost(now: Situation) -> float:
    """Dollars until the next decision, for what is held."""
    held = now.spot * now.spot_price + now.on_demand * now.on_demand_price
    return held * now.step / _HOUR


def _affordable(now: Situation) -> int:
    """How many on-demand replicas may run while the rest still costs no more than the budget has left."""
    if now.budget is None or not now.on_demand_price:
        return now.most
    left = now.budget - now.spent - now.work * now.spot_price / _HOUR
    dearer = now.on_demand_price - now.spot_price
    if dearer <= 0:
        return now.most
    seconds = left * _HOUR / dearer  # of replicas that may be on demand instead of spot
    return now.most if seconds >= now.work else max(int(seconds // max(now.cold_start + now.step, 1.0)), 0)


def _told(now: Situation, spot: int, on_demand: int, rule: Rule) -> CapacityDecision:
    told = f"{spot} spot and {on_demand} on-demand replicas: {rule}"
    facts = [f"{_hours(now.work)} of one replica left"]
    if now.deadline is not None:
        facts.append(f"{_hours(now.seconds_left)} to the deadline")
        facts.append(f"spot gives {now.spot_expected:.1f} replicas on the average")
    if now.budget is not None:
        facts.append(f"${now.spent:,.2f} of ${now.budget:,.2f} spent")
    return CapacityDecision(spot=spot, on_demand=on_demand, rule=rule, reason=f"{told} ({', '.join(facts)})")


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR:.1f} h" if seconds >= _HOUR else f"{seconds / 60:.0f} min"


@dataclass(slots=True)
class SpotHistory:
    """How much of the spot that was wanted was at work, on the average.

    It begins with a prior: ``share`` over ``weight`` seconds. A replica that starts is not at work yet: so
    each interruption counts with the start that it costs.
    """

    share: float = 0.6
    weight: float = 4 * _HOUR
    _had: float = 0.0
    _wanted: float = 0.0

    def add(self, *, wanted: int, had: int, seconds: float) -> None:
        """Count that ``had`` of ``wanted`` spot replicas worked for ``seconds``."""
        if wanted > 0:
            self._wanted += seconds
            self._had += seconds * min(had, wanted) / wanted

    def expected(self, wanted: int) -> float:
        """Spot replicas on the average, where so many are wanted."""
        share = (self.share * self.weight + self._had) / (self.weight + self._wanted)
        return wanted * min(max(share, 0.0), 1.0)
