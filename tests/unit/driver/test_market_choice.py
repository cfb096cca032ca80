"""How many replicas may be on demand, as a job with a deadline goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dray.driver.capacity.market import SHORT_SECONDS, Held, MarketChoice
from dray.driver.capacity.policy import CapacityDecision, Rule, Situation

pytestmark = pytest.mark.unit

HOUR = 3600.0
MOST = 4


def situation(elapsed: float, *, work_hours: float, deadline: float = 10 * HOUR) -> Situation:
    left = work_hours * HOUR
    return Situation(
        left=left, rate=1.0, elapsed=elapsed, deadline=deadline, cold_start=120, step=60, most=MOST
    )


def look(choice: MarketChoice, now: Situation, there: Held) -> CapacityDecision | None:
    return choice.look(now, there, now.elapsed)


def held(spot: int = 0, on_demand: int = 0, coming: int = 0) -> Held:
    return Held(wanted=MOST, spot=spot, on_demand=on_demand, coming=coming)


def test_while_there_is_time_all_wait_for_spot() -> None:
    choice = MarketChoice()
    for minute in range(60):
        assert look(choice, situation(60.0 * minute, work_hours=8), held(spot=1)) is None


def test_spot_that_stays_away_is_made_up_for_when_most_replicas_are_needed() -> None:
    """36 of 40 hours that four replicas have: with one on spot, the others cannot wait for long."""
    choice = MarketChoice()
    found = [(at, look(choice, situation(at, work_hours=34), held(spot=1))) for at in (0.0, 60.0)]
    assert [one for _, one in found] == [None, None]
    decided = look(choice, situation(SHORT_SECONDS, work_hours=34), held(spot=1))
    assert decided is not None
    assert decided.rule is Rule.BEHIND
    assert decided.on_demand > 0
    assert "on-demand replicas: spot is not expected to be enough" in decided.reason
    assert look(choice, situation(SHORT_SECONDS + 60, work_hours=34), held(spot=1)) is None  # as before


def test_replicas_that_load_their_model_are_not_missing() -> None:
    choice = MarketChoice()
    for at in range(0, 1200, 60):
        assert look(choice, situation(float(at), work_hours=34), held(spot=1, coming=3)) is None


def test_the_last_moment_takes_machines_on_demand_whatever_spot_may_bring() -> None:
    decided = look(MarketChoice(), situation(9.45 * HOUR, work_hours=2.03), held())
    assert decided is not None
    assert (decided.on_demand, decided.rule) == (2, Rule.LAST_MOMENT)


def test_too_late_takes_all_that_are_allowed_and_once_ahead_none() -> None:
    choice = MarketChoice()
    decided = look(choice, situation(9.45 * HOUR, work_hours=2.15), held())
    assert decided is not None
    assert (decided.on_demand, decided.rule) == (MOST, Rule.TOO_LATE)
    ahead = look(choice, situation(9.6 * HOUR, work_hours=1.0), held(on_demand=MOST))
    assert ahead is not None
    assert (ahead.on_demand, ahead.rule) == (0, Rule.AHEAD)


def test_a_budget_goes_before_the_deadline() -> None:
    choice = MarketChoice()
    now = situation(9.45 * HOUR, work_hours=2.15)
    broke = replace(now, budget=1.0, spent=0.9)
    prices = Held(wanted=MOST, spot=0, on_demand=0, coming=0, spot_price=0.4, on_demand_price=1.2)
    assert look(choice, broke, prices) is None


def test_before_any_answer_one_is_on_demand_where_spot_stays_away() -> None:
    choice = MarketChoice()
    assert choice.look(None, held(), 0.0) is None
    assert choice.look(None, held(), SHORT_SECONDS - 1) is None
    decided = choice.look(None, held(), SHORT_SECONDS)
    assert decided is not None
    assert (decided.on_demand, decided.rule) == (1, Rule.UNKNOWN)
    assert choice.look(None, held(coming=1), SHORT_SECONDS + 60) is None
    assert choice.look(None, held(), 2 * SHORT_SECONDS) is None  # it is asked for already


@pytest.mark.parametrize("there", [held(spot=1), held(coming=1)])
def test_before_any_answer_a_replica_that_works_or_comes_is_enough(there: Held) -> None:
    choice = MarketChoice()
    assert [choice.look(None, there, float(at)) for at in range(0, 1200, 60)] == [None] * 20
