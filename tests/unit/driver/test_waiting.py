"""Why a replica has no place yet, in words, and when it asks for less."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import Node, NodeType
from dray.cluster.capacity import Capacity, Room
from dray.driver.replicas.handle import ReplicaHandle
from dray.driver.replicas.waiting import Places, why_waiting
from dray.engine.protocol import EngineSpec
from dray.kinds import Kind
from tests.support.clocks import replace_here
from tests.unit.driver.scripted import ScriptedFleet, ScriptedProcess, cluster

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)
GROUP = NodeType(name="gpus", cpus=8, gpus=8, most=2)


def _capacity(
    *rooms: tuple[float, float, float, float], refused: tuple[float, float] | None = None
) -> Capacity:
    """Of nodes with so many CPUs and GPUs, of which so many are free."""
    found = tuple(Room(cpus=c, gpus=g, free_cpus=fc, free_gpus=fg) for c, g, fc, fg in rooms)
    return Capacity(
        nodes=_nodes(*[(c, g) for c, g, _, _ in rooms]), rooms=found, refused=(refused,) if refused else ()
    )


def _nodes(*nodes: tuple[float, float]) -> tuple[Node, ...]:
    return tuple(
        Node(node_id=str(n), host=str(n), cpus=cpus, gpus=gpus, stable=n == 0)
        for n, (cpus, gpus) in enumerate(nodes)
    )


@pytest.mark.parametrize(
    ("ask", "capacity", "coming", "told"),
    [
        (
            ReplicaResources(cpus=2),
            _capacity((2, 0, 1, 0), (1, 0, 0, 0)),
            None,
            "asks for 2 CPUs, the largest free node has 1 CPU",
        ),
        (
            ReplicaResources(cpus=2),
            _capacity((1, 0, 1, 0)),
            (),
            "asks for 2 CPUs, the largest node has 1 CPU; "
            "it waits until such a node joins, and this cluster has no autoscaler",
        ),
        (
            ReplicaResources(cpus=1, gpus=1),
            _capacity((8, 0, 8, 0)),
            None,
            "asks for 1 GPU and 1 CPU, no node has a GPU; it waits until such a node joins",
        ),
        (
            ReplicaResources(cpus=1, gpus=1),
            _capacity((8, 0, 8, 0)),
            (GROUP,),
            "asks for 1 GPU and 1 CPU, no node has a GPU; the cluster's autoscaler is asked for such a node",
        ),
        (
            ReplicaResources(cpus=1, gpus=16),
            _capacity((8, 4, 8, 4)),
            (GROUP,),
            "asks for 16 GPUs and 1 CPU, the largest node has 4 GPUs; "
            "the cluster's autoscaler has no such node",
        ),
        (
            ReplicaResources(cpus=1, gpus=1),
            _capacity((8, 0, 8, 0), refused=(1, 1)),
            None,
            "asks for 1 GPU and 1 CPU, no node has a GPU; "
            "the cluster's autoscaler says that it cannot start such a node",
        ),
        (
            ReplicaResources(cpus=1, gpus=1),
            _capacity((8, 1, 8, 0), (8, 0, 8, 0)),
            None,
            "asks for 1 GPU and 1 CPU, no free node has a GPU",
        ),
        (
            ReplicaResources(cpus=1, gpus=1),
            _capacity((8, 1, 0, 1), (8, 0, 8, 0)),
            None,
            "asks for 1 GPU and 1 CPU, the largest free node has 0 CPUs beside its GPUs",
        ),
        (
            ReplicaResources(cpus=1),
            _capacity((1, 0, 1, 0)),
            None,
            "asks for 1 CPU, which a node has free; Ray has not started it yet",
        ),
        (
            ReplicaResources(cpus=1, nodes=2),
            _capacity((1, 0, 1, 0), (1, 0, 1, 0), (1, 0, 0, 0)),
            None,
            "asks for 2 nodes with 1 CPU each, which 2 nodes have free; Ray has not started it yet",
        ),
        (
            ReplicaResources(cpus=1, gpus=0.4),
            _capacity((8, 2, 4, 0.4)),
            None,
            "asks for 0.4 GPUs and 1 CPU, and what is free of GPUs is parts of several",
        ),
        (
            ReplicaResources(cpus=1, nodes=2),
            _capacity((1, 0, 1, 0), (1, 0, 0, 0)),
            None,
            "asks for 2 nodes with 1 CPU each, which 1 node has free",
        ),
        (
            ReplicaResources(cpus=1, nodes=2),
            _capacity((1, 0, 0, 0), (1, 0, 0, 0)),
            None,
            "asks for 2 nodes with 1 CPU each, the largest free node has 0 CPUs",
        ),
        (
            ReplicaResources(cpus=2, nodes=2),
            _capacity((1, 0, 1, 0), (2, 0, 2, 0)),
            (),
            "asks for 2 nodes with 2 CPUs each, which 1 node has; "
            "it waits until such a node joins, and this cluster has no autoscaler",
        ),
    ],
)
def test_the_reason_names_what_is_asked_for_and_what_comes_nearest(
    ask: ReplicaResources, capacity: Capacity, coming: tuple[NodeType, ...] | None, told: str
) -> None:
    assert why_waiting(ask, capacity, coming) == told


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (
            ReplicaResources(cpus=4),
            "asks for 4 CPUs, the largest node has 1 CPU; it waits until such a node joins; "
            "1 node with these is being drained and takes nothing new",
        ),
        (ReplicaResources(cpus=1), "asks for 1 CPU, which a node has free; Ray has not started it yet"),
        (
            ReplicaResources(cpus=8),
            "asks for 8 CPUs, the largest node has 1 CPU; it waits until such a node joins",
        ),
    ],
)
def test_a_node_that_is_drained_has_no_room_and_is_told_of(ask: ReplicaResources, told: str) -> None:
    assert why_waiting(ask, _drained(_capacity((4, 0, 4, 0), (1, 0, 1, 0))), None) == told


def _drained(capacity: Capacity) -> Capacity:
    """The same, whose first node is being drained."""
    first, *others = capacity.nodes
    return replace(capacity, nodes=(replace(first, draining=True), *others))


class _Followed:
    """Places whose cluster and clock a test sets."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capacity: Capacity, spec: EngineSpec = SPEC, **changes: Any
    ) -> None:
        self.now = 1000.0
        replace_here(monkeypatch, time, "monotonic", lambda: self.now)
        self.fleet = ScriptedFleet(info=cluster(*capacity.nodes, **changes))
        self.fleet.seen = capacity
        self.places = Places(spec, self.fleet, 3)

    def replica(self, *, placed: bool = False) -> ReplicaHandle:
        place = "node" if placed else None
        process = ScriptedProcess(name="p/replica-0", spec=SPEC, avoid=frozenset(), place=place)
        return ReplicaHandle(lane=0, process=process, slots=2, asked=self.now)

    def look(self, *replicas: ReplicaHandle, after: float = 4.0, working: int = 0) -> list[ReplicaHandle]:
        self.now += after
        return self.places.look(list(replicas), working)


def test_those_that_wait_have_the_reason_and_others_none(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = _Followed(monkeypatch, _capacity((1, 0, 0, 0), (1, 0, 0, 0)))
    waits, placed = followed.replica(), followed.replica(placed=True)
    assert followed.look(waits, placed, working=1) == []
    assert (waits.note, placed.note) == ("asks for 1 CPU, the largest free node has 0 CPUs", None)
    followed.fleet.seen = None
    assert followed.look(waits, placed) == []  # it is known no better
    assert waits.note is not None
    waits.placed = followed.now
    followed.look(waits, placed)
    assert waits.note is None


def test_what_ray_is_about_to_place_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = _Followed(monkeypatch, _capacity((2, 0, 2, 0)))
    one = followed.replica()
    followed.look(one)
    assert one.note is None
    followed.look(one, after=40.0)
    assert one.note == "asks for 1 CPU, which a node has free; Ray has not started it yet"


def test_replicas_that_fill_the_cluster_are_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = _Followed(monkeypatch, _capacity((2, 0, 0, 0), (1, 0, 0, 0)))
    working, first, second = 1, followed.replica(), followed.replica()
    followed.look(first, second, working=working)
    assert (first.note, second.note) == (None, None)  # one of the two has a place: which, Ray does not say
    followed.fleet.seen = _capacity((1, 0, 0, 0), (1, 0, 0, 0))
    first.process.place = "node"  # type: ignore[attr-defined]  # a scripted one
    followed.look(first, second, working=working)
    assert (first.note, second.note) == (None, "asks for 1 CPU, the largest free node has 0 CPUs")


@pytest.mark.parametrize(("coming", "seconds"), [((), 60.0), (None, 600.0)])
def test_when_the_large_nodes_went_for_good_replicas_ask_for_what_is_left(
    monkeypatch: pytest.MonkeyPatch, coming: tuple[NodeType, ...] | None, seconds: float
) -> None:
    followed = _Followed(monkeypatch, _capacity((1, 0, 1, 0), *[(8, 0, 8, 0)] * 3), coming=coming)
    assert followed.places.ask == ReplicaResources(cpus=8)
    followed.fleet.seen = _capacity((1, 0, 1, 0), (2, 0, 2, 0), (2, 0, 2, 0))
    one, placed = followed.replica(), followed.replica(placed=True)
    assert followed.look(one, placed) == []
    assert followed.look(one, placed, after=seconds - 1) == []
    assert followed.places.ask == ReplicaResources(cpus=8)
    assert followed.look(one, placed) == [one]
    assert followed.places.ask == ReplicaResources(cpus=1)
    assert followed.look(one, placed, after=1000) == []


def test_a_node_that_is_drained_and_stays_is_as_good_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process keeps it up; a replica waited for it beside an idle node, and the job failed."""
    followed = _Followed(monkeypatch, _capacity((8, 0, 8, 0), (2, 0, 2, 0), (1, 0, 1, 0)), coming=())
    followed.places.ask = ReplicaResources(cpus=8)
    followed.fleet.seen = _drained(_capacity((8, 0, 8, 0), (2, 0, 2, 0), (2, 0, 2, 0)))
    one = followed.replica()
    assert followed.look(one) == []
    assert followed.look(one, after=61.0) == [one]
    assert followed.places.ask == ReplicaResources(cpus=1)


def test_a_node_that_the_autoscaler_may_bring_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    large = NodeType(name="large", cpus=8, gpus=0, most=3)
    followed = _Followed(monkeypatch, _capacity(*[(8, 0, 8, 0)] * 3), coming=(large,))
    followed.fleet.seen = _capacity((1, 0, 1, 0))
    one = followed.replica()
    assert followed.look(one) == []
    assert followed.look(one, after=10_000) == []
    assert followed.places.ask == ReplicaResources(cpus=8)


def test_free_places_on_several_nodes_are_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps to what it was told: to avoid a node that is the only one left now, say."""
    over_two = replace(SPEC, arguments={"nnodes": 2})
    followed = _Followed(monkeypatch, _capacity((1, 0, 1, 0), (1, 0, 0, 0)), over_two)
    one, placed = followed.replica(), followed.replica(placed=True)
    assert followed.look(one, placed, after=100.0) == []  # a node is not free
    followed.fleet.seen = _capacity((1, 0, 1, 0), (1, 0, 1, 0))
    assert followed.look(one, placed) == [one]
    late = followed.replica()
    assert followed.look(late, placed, after=50.0) == []  # Ray may be about to
    assert followed.look(late, placed, after=20.0) == [late]
