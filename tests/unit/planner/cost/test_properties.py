"""Laws that hold for every model, device, setting and demand."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import date
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dray.planner.catalogue import Instance, Price
from dray.planner.cost import Demand, ModelledReplica, Phi, replica_rate, step_time
from dray.planner.cost.memory import batch_size
from dray.planner.cost.plan import Offer, Plan, Terms, evaluate
from dray.planner.cost.run_time import interruption_share, rows_of_replica
from tests.support.planning import demands, replicas

pytestmark = pytest.mark.unit

PHI = Phi(likely=0.85, low=0.65, high=1.05, reason="test")
DAY = date(2026, 11, 24)
SLACK = 1 + 1e-9


def runs(replica: ModelledReplica, demand: Demand) -> None:
    """Leave out replicas that hold no request."""
    assume(batch_size(replica.model, replica.device, replica.setting, demand) >= 1)


def plan_of(replica: ModelledReplica, demand: Demand, *, spot: bool = True, machines: int = 1) -> Plan:
    instance = Instance(
        name="test", device=replica.device, devices=replica.devices, link=replica.link, vcpus=8, ram=1e11
    )
    price = Price(likely=2.0, low=1.0, high=3.0, day=DAY, source="test")
    offer = Offer(instance=instance, machines=machines, spot=spot, price=price)
    rows = rows_of_replica(demand.rows, offer.replicas(replica.setting))
    batch = min(batch_size(replica.model, replica.device, replica.setting, demand), float(rows))
    return evaluate(replica, replica_rate(replica, demand, batch), demand, offer, Terms(phi=PHI))


def faster_device(replica: ModelledReplica, name: str, factor: float) -> ModelledReplica:
    value = getattr(replica.device, name)
    more: Any = (
        {key: rate * factor for key, rate in value.items()} if isinstance(value, dict) else value * factor
    )
    return replace(replica, device=replace(replica.device, **{name: more}))


@given(replicas(), demands(), st.floats(1, 10), st.sampled_from(["bandwidth", "peak", "memory"]))
def test_a_better_device_is_never_slower(
    replica: ModelledReplica, demand: Demand, factor: float, name: str
) -> None:
    runs(replica, demand)
    better = faster_device(replica, name, factor)
    assert replica_rate(better, demand).per_second * SLACK >= replica_rate(replica, demand).per_second


@given(replicas(), demands(), st.floats(0, 1))
def test_a_higher_hit_share_is_never_slower(replica: ModelledReplica, demand: Demand, share: float) -> None:
    runs(replica, demand)
    higher = replace(demand, hit_share=max(share, demand.hit_share))
    assert replica_rate(replica, higher).per_second * SLACK >= replica_rate(replica, demand).per_second


@given(replicas(), demands(), st.integers(1, 10**9))
def test_more_rows_are_never_cheaper_or_faster(replica: ModelledReplica, demand: Demand, more: int) -> None:
    runs(replica, demand)
    few, many = plan_of(replica, demand), plan_of(replica, replace(demand, rows=demand.rows + more))
    for name in ("dollars", "seconds"):
        for bound in ("low", "likely", "high"):
            assert getattr(getattr(many, name), bound) * SLACK >= getattr(getattr(few, name), bound)


@given(replicas(), demands(), st.integers(2, 64))
def test_more_machines_are_never_slower(replica: ModelledReplica, demand: Demand, machines: int) -> None:
    runs(replica, demand)
    alone, together = plan_of(replica, demand), plan_of(replica, demand, machines=machines)
    assert together.seconds.likely <= alone.seconds.likely * SLACK


@given(replicas(), demands(), st.booleans())
def test_parts_sum_to_the_whole(replica: ModelledReplica, demand: Demand, spot: bool) -> None:
    runs(replica, demand)
    plan = plan_of(replica, demand, spot=spot)
    bill, time = plan.bill, plan.time
    parts = [getattr(bill, one.name) for one in fields(bill)]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(plan.dollars.likely)
    assert plan.dollars.likely == pytest.approx(time.total * plan.price.likely / 3600)
    assert sum(getattr(time, one.name) for one in fields(time)) == pytest.approx(plan.seconds.likely)
    assert (time.interrupted == 0) or spot


@given(replicas(), demands())
def test_intervals_hold_the_likely_value(replica: ModelledReplica, demand: Demand) -> None:
    runs(replica, demand)
    plan = plan_of(replica, demand)
    for one in (plan.dollars, plan.seconds, plan.requests_per_second, plan.dollars_per_million_tokens):
        assert 0 < one.low <= one.likely <= one.high < float("inf")


@given(replicas(), demands())
def test_each_term_of_a_step_is_there_and_finite(replica: ModelledReplica, demand: Demand) -> None:
    step = step_time(replica, demand, 1.0)
    terms = [getattr(step, one.name) for one in fields(step)]
    assert min(terms) >= 0
    assert 0 < sum(terms) == pytest.approx(step.total)
    assert step.total < float("inf")


@given(replicas(), demands(), st.floats(1.01, 4))
def test_a_worse_phi_is_slower(replica: ModelledReplica, demand: Demand, factor: float) -> None:
    runs(replica, demand)
    plan = plan_of(replica, demand)
    assert plan.seconds.high > plan.seconds.low
    assert PHI.widened(factor, "").low < PHI.low


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 1000), st.floats(0, 1e5))
def test_more_interruptions_cost_more(rate: float, more: float, cold: float, latency: float) -> None:
    assert interruption_share(rate, cold, latency) <= interruption_share(rate + more, cold, latency) * SLACK
