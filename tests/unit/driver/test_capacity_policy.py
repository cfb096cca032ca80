"""Spot and on-demand replicas for a deadline and a budget: rules one by one, and what holds in any market."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.driver.capacity.policy import Rule, Situation, SpotHistory, decide, of_one_kind
from tests.benchmarks.deadline import of_dray
from tests.support.spot_market import Market, Run, View, oracle, replay

pytestmark = pytest.mark.unit

HOUR = 3600.0
CALM = Situation(
    left=40 * HOUR, rate=1.0, elapsed=0.0, deadline=50 * HOUR, cold_start=300.0, step=10.0, most=4,
    spot_expected=2.0, spot_price=0.4, on_demand_price=1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "spot", "on_demand", "rule"),
    [
        ({}, 4, 0, Rule.AHEAD),
        ({"spot_to_be_had": 1}, 1, 0, Rule.AHEAD),
        ({"deadline": None}, 4, 0, Rule.NO_DEADLINE),
        ({"left": 0.0}, 0, 0, Rule.DONE),
        # 40 h of work in 11 h: nearly four replicas all the time, and spot gives fewer
        ({"deadline": 11 * HOUR, "spot_to_be_had": 0}, 0, 1, Rule.BEHIND),
        ({"deadline": 11 * HOUR, "spot_to_be_had": 4, "spot": 4}, 4, 0, Rule.AHEAD),
        ({"deadline": 10.085 * HOUR, "spot_to_be_had": 0}, 0, 2, Rule.LAST_MOMENT),
        ({"deadline": 9 * HOUR, "spot_to_be_had": 0}, 0, 4, Rule.TOO_LATE),
        ({"deadline": 9 * HOUR, "spot": 2, "spot_to_be_had": 2}, 2, 2, Rule.TOO_LATE),
        ({"elapsed": 50.5 * HOUR, "left": 2 * HOUR, "most": 8, "spot": 4}, 4, 0, Rule.OVER),
        (
            {"elapsed": 50.0 * HOUR, "left": 2 * HOUR, "most": 8, "spot": 1, "spot_to_be_had": 1},
            1,
            1,
            Rule.OVER,
        ),
        ({"elapsed": 74.0 * HOUR, "spot_to_be_had": 0, "budget": 16.01}, 0, 0, Rule.BUDGET),
        ({"budget": 10.0, "spent": 10.01}, 0, 0, Rule.SPENT),
        # $17 are left for 40 h, which cost $16 on spot: on-demand replicas may run for 100 minutes in all
        ({"deadline": 10.1 * HOUR, "spot_to_be_had": 0, "budget": 16.01}, 0, 0, Rule.BUDGET),
        # 10 cents more than spot costs pay for one start on demand; spot gets the other three places of four
        ({"deadline": 9 * HOUR, "spot_to_be_had": 4, "budget": 20.1, "spent": 4.0}, 3, 1, Rule.BUDGET),
        # 600 s of work cost 7 cents on spot and 17 on demand: all of it may be on demand
        ({"left": 600.0, "deadline": 100.0, "spot_to_be_had": 0, "budget": 0.17}, 0, 4, Rule.TOO_LATE),
        # on demand costs no more than spot: no budget keeps it from running
        (
            {"deadline": 9 * HOUR, "spot_to_be_had": 0, "budget": 16.1, "on_demand_price": 0.4},
            0,
            4,
            Rule.TOO_LATE,
        ),
    ],
)
def test_the_rules(change: dict[str, Any], spot: int, on_demand: int, rule: Rule) -> None:
    decision = decide(replace(CALM, **change))
    assert (decision.spot, decision.on_demand, decision.rule) == (spot, on_demand, rule)
    assert f"{spot} spot and {on_demand} on-demand replicas: {rule}" in decision.reason


@pytest.mark.parametrize(
    ("spot", "on_demand", "spent", "over"),
    [(4, 0, 9.73, False), (4, 0, 9.74, True), (0, 2, 9.66, False), (0, 2, 9.67, True), (4, 2, 9.41, True)],
)
def test_a_budget_is_spent_before_the_next_decision_would_exceed_it(
    spot: int, on_demand: int, spent: float, over: bool
) -> None:
    """In ten minutes four spot replicas cost 27 cents, and two on demand 33."""
    held = replace(CALM, step=600.0, spot=spot, on_demand=on_demand, budget=10.0, spent=spent)
    assert (decide(held).rule is Rule.SPENT) == over


def test_a_faster_replica_has_less_to_do() -> None:
    tight = replace(CALM, deadline=10.085 * HOUR, spot_to_be_had=0)
    assert decide(replace(tight, rate=2.0, left=2 * tight.left)).on_demand == decide(tight).on_demand == 2
    assert decide(replace(tight, rate=2.0)).on_demand == 0


def test_the_reason_has_the_figures_behind_it() -> None:
    told = decide(replace(CALM, left=0.5 * HOUR, budget=1234.0, spent=1.5)).reason
    assert "(30 min of one replica left, 50.0 h to the deadline, spot gives 2.0 replicas on the " in told
    assert told.endswith("on the average, $1.50 of $1,234.00 spent)")
    assert decide(replace(CALM, deadline=None)).reason.endswith("(40.0 h of one replica left)")


@pytest.mark.parametrize("change", [{"rate": 0.0}, {"cold_start": -1.0}, {"step": 0.0}, {"most": 0}])
def test_a_situation_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        replace(CALM, **change)


@pytest.mark.parametrize(
    ("change", "replicas"),
    [
        ({"deadline": 9 * HOUR, "on_demand": 5}, 5),  # 8 h, or 8.8 if it takes longer than predicted
        ({"deadline": 8.5 * HOUR, "on_demand": 5}, 7),  # 6.5 h are left when all have started
        ({"deadline": 8.5 * HOUR, "on_demand": 3, "spot": 2}, 7),
        ({"elapsed": 60 * HOUR, "left": 2 * HOUR, "on_demand": 4}, 4),  # the deadline is over
        ({"deadline": None, "on_demand": 1}, 4),  # a start is a tenth of what each of four has to do
        ({"deadline": 100.0, "left": 1.9 * HOUR, "on_demand": 2}, 2),  # done before another has started
        ({"deadline": 100.0, "left": 2.1 * HOUR, "on_demand": 2}, 10),
    ],
)
def test_replicas_of_one_kind(change: dict[str, Any], replicas: int) -> None:
    assert of_one_kind(replace(CALM, cold_start=HOUR, most=10, **change)) == replicas


def test_on_demand_replicas_stay_until_the_job_is_ahead_by_some_starts() -> None:
    on_the_line = replace(CALM, left=32 * HOUR, deadline=10.2 * HOUR, spot_to_be_had=2, spot=2)
    assert decide(on_the_line).on_demand == 0
    held = decide(replace(on_the_line, on_demand=1))
    assert (held.on_demand, held.rule) == (1, Rule.HOLD)
    assert decide(replace(on_the_line, on_demand=1, deadline=11 * HOUR)).on_demand == 0


def test_replicas_that_would_start_too_late_are_not_asked_for() -> None:
    assert decide(replace(CALM, left=200.0, spot=1)).replicas == 1
    assert decide(replace(CALM, left=0.5 * HOUR, spot=1)).replicas == 1
    assert decide(replace(CALM, left=2 * HOUR, spot=1)).replicas == 2


def test_history_forgets_its_prior() -> None:
    history = SpotHistory()
    assert history.expected(4) == pytest.approx(2.4)
    history.add(wanted=4, had=4, seconds=40 * HOUR)
    assert history.expected(4) == pytest.approx(4, rel=0.05)
    history.add(wanted=4, had=0, seconds=400 * HOUR)
    assert history.expected(4) < 0.5
    alone = SpotHistory()
    alone.add(wanted=1, had=1, seconds=40 * HOUR)
    alone.add(wanted=0, had=0, seconds=400 * HOUR)  # none was asked for: that says nothing of spot
    assert alone.expected(1) == pytest.approx(1, rel=0.05)


@given(
    trace=st.lists(st.integers(0, 3), min_size=8, max_size=40),
    most=st.integers(1, 3),
    share=st.floats(0.05, 1.0),
)
@settings(max_examples=150, deadline=None)
def test_no_deadline_is_missed_that_on_demand_meets(trace: list[int], most: int, share: float) -> None:
    work = max(int(share * most * (len(trace) - 1)), 1)  # all on demand from the first step
    market = Market(trace=trace, work=work, deadline=len(trace), most=most)
    run, best = replay(market, of_dray(market)), oracle(market)
    assert run.finished is not None
    assert best is not None and run.dollars >= best - 1e-6


@given(
    left=st.floats(0, 1e7), elapsed=st.floats(0, 1e6), deadline=st.none() | st.floats(0, 1e6),
    most=st.integers(1, 64), spot=st.integers(0, 64), on_demand=st.integers(0, 64),
    had=st.none() | st.integers(0, 64), budget=st.none() | st.floats(0, 1e4), spent=st.floats(0, 1e4),
    cold=st.floats(0, 3600), step=st.floats(1, 600),
)  # fmt: skip
def test_any_situation_has_a_decision(
    left: float, elapsed: float, deadline: float | None, most: int, spot: int, on_demand: int,
    had: int | None, budget: float | None, spent: float, cold: float, step: float,
) -> None:  # fmt: skip
    decision = decide(
        Situation(
            left=left,
            rate=1.0,
            elapsed=elapsed,
            deadline=deadline,
            cold_start=cold,
            step=step,
            most=most,
            spot=spot,
            on_demand=on_demand,
            spot_to_be_had=had,
            spot_expected=most / 2,
            spot_price=0.4,
            on_demand_price=1.0,
            budget=budget,
            spent=spent,
        )
    )
    assert decision.spot >= 0 and decision.on_demand >= 0
    assert decision.replicas <= most
    assert decision.spot <= (most if had is None else had)


def test_the_oracle_is_the_cheapest_of_all_runs() -> None:
    """By trying all runs of a small market."""
    market = Market(trace=[1, 0, 1, 1, 0, 2, 2, 1], work=5, deadline=8, most=2)
    assert oracle(market) == pytest.approx(_cheapest(market))


def _cheapest(market: Market) -> float:
    def from_here(step: int, left: int, spot: int, on_demand: int) -> float:
        if left <= 0:
            return 0.0
        if step == market.deadline:
            return float("inf")
        found = float("inf")
        for new_spot in range(min(market.trace[step], market.most) + 1):
            for new_on_demand in range(market.most - new_spot + 1):
                gain = min(spot, new_spot) + min(on_demand, new_on_demand)
                price = new_spot * market.spot_price + new_on_demand * market.on_demand_price
                found = min(found, price + from_here(step + 1, left - gain, new_spot, new_on_demand))
        return found

    return from_here(0, market.work, 0, 0)


def test_a_replay_takes_back_what_the_market_does_not_have() -> None:
    market = Market(trace=[2, 1, 1, 1], work=3, deadline=4, most=2)
    seen: list[int] = []

    def policy(view: View) -> tuple[int, int]:
        seen.append(view.spot)
        return 2, 0

    assert replay(market, policy) == Run(dollars=5 * 0.35, finished=4, on_demand_steps=0)
    assert seen == [0, 1, 1, 1]
