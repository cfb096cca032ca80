"""What a driver notes of its nodes' time, in a job of many replicas that were lost before."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dray.account import account_of
from dray.account.spans import Phase
from dray.cluster.base import ClusterInfo, Node
from dray.driver.events import NodeLeft, NodeLost, ReplicaChanged, ReplicaLooked, ReplicaReady
from dray.driver.ledger import Ledger
from dray.driver.replicas.handle import ReplicaHandle
from dray.engine.loop_stats import LoopStats
from dray.engine.protocol import EngineSpec
from dray.engine.replica import ReplicaStatus
from dray.job.open_job import OpenJob
from dray.kinds import Kind
from dray.steady_clock import SteadyClock
from dray.store import ReplicaState
from tests.support.clocks import Clocks
from tests.unit.driver.scripted import ScriptedProcess

pytestmark = pytest.mark.unit

LIVES = 300
"""Replicas: two on each of 100 nodes, one after the other, and then one on each of 100 others."""

HOUR = 3600.0
SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)


class Counted:
    """The replicas of a ledger, which counts how many are read."""

    def __init__(self, lives: dict[str, Any]) -> None:
        self.lives = lives
        self.read = 0

    def values(self) -> list[Any]:
        self.read += len(self.lives)
        return list(self.lives.values())


def test_what_the_nodes_cost_takes_time_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its square: a driver with a budget counts every two seconds."""
    settings = SimpleNamespace(request=SimpleNamespace(price=2.0))
    job = job_of(settings)
    ledger = Ledger(job, ClusterInfo(address="a", nodes=(), seconds=0.0, stable_resource="s"))
    for number in range(LIVES):
        began, last = HOUR * (number // 100), ReplicaState.GONE if number < 200 else ReplicaState.READY
        for state, at in ((ReplicaState.STARTING, began), (last, began + HOUR)):
            ledger.hear(
                ReplicaChanged(
                    name=f"job/1/replica-{number}",
                    state=state,
                    began=began,
                    at=at,
                    node=f"node-{number % 100 + 100 * (number >= 200)}",
                    host="host",
                    gpus=1.0,
                )
            )
    lives = Counted(ledger._lives)
    monkeypatch.setattr(ledger, "_lives", lives)
    spans = ledger.spans(3 * HOUR)
    assert lives.read <= 2 * LIVES
    first = {span.node: min(one.started for one in spans if one.node == span.node) for span in spans}
    assert (first["node-0"], first["node-100"]) == (0.0, 2 * HOUR)  # when each was first seen
    assert sum(span.micros for span in spans) == 1_000_000 * HOUR * (100 * 3 + 100 * 1)


def job_of(settings: SimpleNamespace, started: float = 0.0) -> OpenJob:
    lease = SimpleNamespace(epoch=1)
    job = SimpleNamespace(started=started, settings=settings, lease=lease, job_id="job", clock=SteadyClock())
    return cast("OpenJob", job)


@pytest.fixture
def ledger() -> Ledger:
    """Of a job that began at 0, on a cluster without nodes, at $10 an hour for any node."""
    settings = SimpleNamespace(request=SimpleNamespace(price=10.0))
    job = job_of(settings)
    return Ledger(job, ClusterInfo(address="a", nodes=(), seconds=0.0, stable_resource="s"))


def change(
    ledger: Ledger,
    state: ReplicaState,
    at: float,
    node: str | None,
    *,
    name: str = "replica-0",
    began: float = 0,
) -> None:
    ledger.hear(
        ReplicaChanged(name=f"job/1/{name}", state=state, began=began, at=at, node=node, host=None, gpus=1.0)
    )


def test_waiting_for_a_machine_costs_nothing(ledger: Ledger) -> None:
    """The replica was asked for at the beginning; its node came five hours later, and is two minutes old."""
    change(ledger, ReplicaState.STARTING, 0.0, None)
    change(ledger, ReplicaState.STARTING, 5 * HOUR, "new")
    change(ledger, ReplicaState.READY, 5 * HOUR + 60.0, "new")
    spans = ledger.spans(5 * HOUR + 120.0)
    assert sum(span.micros for span in spans) == 120 * 1_000_000


def test_what_a_node_did_for_others_costs_the_job_nothing(ledger: Ledger) -> None:
    """On a shared cluster it had been there for hours when a replica of the job was placed on it."""
    ledger.meet([Node(node_id="shared", host="shared", cpus=8, gpus=1, stable=False)])
    began = time.time() + HOUR
    change(ledger, ReplicaState.STARTING, began, "shared", began=began)
    spans = ledger.spans(began + 10.0)
    assert sum(span.micros for span in spans) == pytest.approx(10_000_000, abs=1_000)


@pytest.mark.parametrize(("shared", "seconds"), [(True, 60), (False, HOUR + 60)])
def test_nodes_of_a_joined_cluster_count_from_the_first_replica_on_them(shared: bool, seconds: float) -> None:
    """A job that grows there after an hour did not have them before; a rented node is paid all the time."""
    settings = SimpleNamespace(request=SimpleNamespace(price=10.0))
    job = job_of(settings)
    there = Node(node_id="there", host="there", cpus=8, gpus=1, stable=False)
    info = ClusterInfo(address="a", nodes=(there,), seconds=0.0, stable_resource="s", shared=shared)
    ledger = Ledger(job, info)
    change(ledger, ReplicaState.STARTING, HOUR, "there", began=HOUR)
    spans = ledger.spans(HOUR + 60.0)
    assert sum(span.micros for span in spans) == seconds * 1_000_000


@pytest.mark.parametrize("node", [None, "a"])
def test_only_a_replica_that_had_a_node_was_interrupted(ledger: Ledger, node: str | None) -> None:
    """One that found no place was no loss: what comes in its lane later is the first engine there."""
    change(ledger, ReplicaState.STARTING, 0.0, node)
    change(ledger, ReplicaState.GONE, 10.0, node)
    change(ledger, ReplicaState.STARTING, 100.0, "b", name="replica-0~1", began=90.0)
    [phase] = {span.phase for span in ledger.spans(110.0) if span.replica == "replica-0~1"}
    assert (phase is Phase.RESTART) == (node is not None)


@pytest.mark.parametrize("late", [0.0, 2.0])
def test_a_replica_that_waited_for_the_gpu_of_another_takes_its_place(ledger: Ledger, late: float) -> None:
    """Also where the store was away, so that the first one's end was told after the second was asked for."""
    ledger.meet([Node(node_id="n", host="n", cpus=8, gpus=1, stable=False)])
    change(ledger, ReplicaState.STARTING, 0.0, "n")
    change(ledger, ReplicaState.STARTING, 0.0, None, name="replica-1")  # no room for it yet
    change(ledger, ReplicaState.GONE, 2 * HOUR + late, "n")
    change(ledger, ReplicaState.STARTING, 2 * HOUR + late, "n", name="replica-1")
    spans = ledger.spans(4 * HOUR)
    assert {span.places for span in spans} == {1}
    assert account_of(spans).gpu_seconds == pytest.approx(4 * HOUR)
    assert sum(span.micros for span in spans if span.replica == "replica-0") / 1e6 == 2 * HOUR + late


class _At(SteadyClock):
    """A clock that stands still."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def __call__(self) -> float:
        return self.at

    def ahead(self) -> float:
        return 0.0


def hear(ledger: Ledger, event: NodeLost | NodeLeft, at: float) -> None:
    ledger._now = _At(at)
    ledger.hear(event)


LOST = NodeLost(node="n", replica="replica-0", cause="SPOT")
LEFT = NodeLeft(node="n")


def paid(ledger: Ledger, now: float) -> float:
    """Hours of the node."""
    return sum(span.micros / span.places for span in ledger.spans(now)) / (HOUR * 1e6)


def test_a_crash_under_a_notice_does_not_end_the_bill_of_a_node_that_works_on(ledger: Ledger) -> None:
    """One of its two replicas crashes while a rebalance notice is in force: that counts as a lost node."""
    for name in ("replica-0", "replica-1"):
        change(ledger, ReplicaState.STARTING, 0.0, "n", name=name)
    change(ledger, ReplicaState.GONE, HOUR, "n")
    hear(ledger, LOST, HOUR)
    assert paid(ledger, 5 * HOUR) == pytest.approx(5)
    hear(ledger, LEFT, 6 * HOUR)
    assert paid(ledger, 8 * HOUR) == pytest.approx(6)


@pytest.mark.parametrize(
    ("left", "hours"),
    [(HOUR + 60.0, 1.0), (6 * HOUR, 6.0)],
    ids=["Ray notices it a minute later", "it works on, and takes no replica more"],
)
def test_a_lost_node_is_paid_until_it_went(ledger: Ledger, left: float, hours: float) -> None:
    change(ledger, ReplicaState.STARTING, 0.0, "n")
    change(ledger, ReplicaState.GONE, HOUR, "n")
    hear(ledger, LOST, HOUR)
    hear(ledger, LEFT, left)
    assert paid(ledger, 10 * HOUR) == pytest.approx(hours)


def test_a_node_that_was_thought_lost_and_took_another_replica_is_paid_until_it_leaves(
    ledger: Ledger,
) -> None:
    """Also where that is told at once after it was thought lost."""
    change(ledger, ReplicaState.STARTING, 0.0, "n")
    change(ledger, ReplicaState.GONE, HOUR, "n")
    hear(ledger, LOST, HOUR)
    change(ledger, ReplicaState.STARTING, HOUR + 5.0, "n", name="replica-0~1", began=HOUR + 5.0)
    change(ledger, ReplicaState.GONE, HOUR + 90.0, "n", name="replica-0~1", began=HOUR + 5.0)
    hear(ledger, LEFT, HOUR + 100.0)
    assert paid(ledger, 10 * HOUR) == pytest.approx((HOUR + 90.0) / HOUR)


class Told:
    """Replicas of which a ledger hears as its driver's events have it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def replica(self, name: str) -> ReplicaHandle:
        process = ScriptedProcess(name=f"job/1/{name}", spec=SPEC, avoid=frozenset(), polls=[True])
        made = ReplicaHandle(lane=0, process=process, slots=2)
        made.has_place()
        self.change(made)
        return made

    def change(self, replica: ReplicaHandle, state: ReplicaState = ReplicaState.STARTING) -> None:
        replica.state = state
        self._ledger.hear(ReplicaChanged.of(replica, 1.0))

    def ready(self, replica: ReplicaHandle) -> None:
        assert replica.poll() and replica.start is not None
        self._ledger.hear(ReplicaReady(start=replica.start))
        self.change(replica, ReplicaState.READY)


def worked(name: str, seconds: float) -> ReplicaStatus:
    stats = LoopStats(busy_seconds=seconds, row_seconds=seconds, answered_seconds=seconds, finished=1)
    return ReplicaStatus(
        name=name, node="node", pid=1, began=1.0, running=0, waiting=0, sessions=1, stats=stats, log=[]
    )


@pytest.mark.parametrize("step", [HOUR, -HOUR])
@pytest.mark.parametrize("moment", range(6))
def test_a_clock_that_is_set_costs_nothing_and_saves_nothing(
    monkeypatch: pytest.MonkeyPatch, step: float, moment: int
) -> None:
    """NTP may set the driver's clock at any moment of a job: a budget goes by the time that passed."""
    clocks, set_at = Clocks(monkeypatch), iter(range(6))

    def go_on() -> None:
        clocks.go_on(60.0)
        if next(set_at) == moment:
            clocks.wall += step

    settings = SimpleNamespace(request=SimpleNamespace(price=60.0))  # a dollar a minute
    job = job_of(settings, started=clocks.wall)
    info = ClusterInfo(address="a", nodes=(), seconds=0.0, stable_resource="s", ready=clocks.wall)
    ledger = Ledger(job, info)
    told = Told(ledger)
    go_on()
    first = told.replica("replica-0")
    go_on()
    told.ready(first)
    go_on()
    ledger.hear(ReplicaLooked(status=worked(first.name, 60.0)))
    go_on()
    told.change(first, ReplicaState.GONE)
    second = told.replica("replica-0~1")
    go_on()
    told.ready(second)
    go_on()
    assert ledger.dollars() == pytest.approx(5.0)
    minutes = Counter[str]()
    for span in ledger.spans(ledger._now()):
        minutes[span.replica] += round(span.micros / 60e6)
    assert minutes == {"replica-0": 3, "replica-0~1": 2}


def test_all_nodes_of_a_replica_are_paid_for(ledger: Ledger) -> None:
    ledger.meet([Node(node_id=one, host=f"host of {one}", cpus=8, gpus=1, stable=False) for one in "ab"])
    for state, at in ((ReplicaState.STARTING, 0.0), (ReplicaState.READY, HOUR)):
        ledger.hear(
            ReplicaChanged(
                name="job/1/replica-0", state=state, began=0.0, at=at, node="a", others=("b",),
                host="host of a", gpus=1.0,
            )
        )  # fmt: skip
    spans = ledger.spans(2 * HOUR)
    assert {span.node: span.host for span in spans} == {"a": "host of a", "b": "host of b"}
    for node in "ab":
        assert sum(span.micros for span in spans if span.node == node) == 2 * HOUR * 1_000_000
