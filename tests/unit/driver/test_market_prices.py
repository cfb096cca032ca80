"""What the driver takes a replica to cost on spot and on demand, also where none is on one of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.base import ClusterInfo, Node
from dray.cluster.capacity import Capacity
from dray.driver.capacity import scaling
from dray.driver.capacity.market import Held
from dray.driver.capacity.purse import Purse
from dray.driver.capacity.scaling import Scaling
from dray.driver.capacity.work_left import Work
from dray.driver.intervals import Intervals
from dray.driver.ledger import Ledger
from dray.job.options.replica_range import ReplicaRange
from dray.job.options.request import JobRequest
from dray.planner.catalogue import load_catalogue
from dray.steady_clock import SteadyClock

pytestmark = pytest.mark.unit


def test_the_first_machine_on_demand_has_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kind that no replica is on yet, or any more: a budget that it would break holds it back."""
    monkeypatch.setattr(scaling, "work_of", lambda *_: Work(left=1, waiting=1, running=1))
    nodes = {
        "spot": Node(node_id="spot", host="h", cpus=4, gpus=1, stable=False, instance="g5.xlarge", spot=True)
    }
    nodes["bought"] = replace(nodes["spot"], node_id="bought", spot=False)
    settings: Any = SimpleNamespace(request=JobRequest.of("i", "m", "o", budget=9.0, deadline="1h"))
    job: Any = SimpleNamespace(job_id="job", settings=settings, clock=SteadyClock(), started=0.0)
    info = ClusterInfo(address="a", nodes=tuple(nodes.values()), seconds=0.0, stable_resource="s")
    money = Purse(job, Ledger(job, info), lambda _: None)
    monkeypatch.setattr(money, "look", lambda *_, **__: None)
    working = list[tuple[str, ...]]()
    pool: Any = SimpleNamespace(
        lanes=1, ready=lambda: 1, idle=lambda _: [], unused=lambda _: [], nodes=lambda: set(nodes),
        working_on=lambda: working, held=list, starts=list, waiting=lambda: None, unplaced=lambda _: 0,
    )  # fmt: skip
    held = list[Held]()
    markets: Any = SimpleNamespace(look=lambda now, one, at: held.append(one))
    capacity = Capacity(nodes=tuple(nodes.values()), rooms=())
    fleet: Any = SimpleNamespace(info=info, capacity=lambda: capacity)
    store: Any = SimpleNamespace(shards=lambda _: [], now=float)
    looked = Scaling(
        job, pool, fleet, lambda _: None, lambda _: None,
        limits=ReplicaRange(1, 3), purse=money, intervals=Intervals(), markets=markets,
    )  # fmt: skip
    day = datetime.now(UTC).date()
    instance = load_catalogue().instances["g5.xlarge"]
    prices = instance.spot_price(day), instance.list_price(day)
    for working[:] in [[("spot",)], [("bought",)], [("spot",), ("bought",)], []]:
        monkeypatch.setattr(looked, "_look_at", 0.0)
        looked.look(store)
        assert prices[0] is not None and prices[1] is not None
        assert held[-1].spot_price == pytest.approx(prices[0].likely)
        assert held[-1].on_demand_price == pytest.approx(prices[1].likely)
