"""What a replica asks Ray for, and how many there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.cluster import placing
from dray.cluster.asking import ReplicaResources, replicas_on
from dray.cluster.base import ClusterInfo, ClusterSettings, Node
from dray.cluster.capacity import Room
from dray.cluster.placing import actor_options, default_replicas, expected_replicas, shrunk
from dray.driver.capacity.rented_places import held
from dray.engine.protocol import EngineSpec
from dray.kinds import Kind

pytestmark = pytest.mark.unit

VLLM = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)
TWO_RANKS = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 2})
SIMULATED = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)


OVER_TWO = replace(TWO_RANKS, arguments={"tensor_parallel_size": 2, "nnodes": 2})


def _cluster(*nodes: tuple[float, float]) -> ClusterInfo:
    found = tuple(
        Node(node_id=str(n), host=str(n), cpus=cpus, gpus=gpus, stable=n == 0)
        for n, (cpus, gpus) in enumerate(nodes)
    )
    return ClusterInfo(address="a", nodes=found, seconds=0.0, stable_resource="dray_stable")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("DRAY_TRACE_DIR", "VLLM_", "HF_")):
            monkeypatch.delenv(name)


def test_what_a_replica_asks_for_is_asked_of_ray() -> None:
    assert actor_options(ReplicaResources(cpus=0.5, gpus=2), _cluster((8, 4))) == {
        "num_cpus": 0.5,
        "num_gpus": 2,
    }
    assert actor_options(ReplicaResources(cpus=0), replace(_cluster((2, 0)), own=True)) == {"num_cpus": 0}


def test_replicas_without_gpus_spread_over_the_nodes_of_a_cluster() -> None:
    assert actor_options(ReplicaResources(cpus=1), _cluster((2, 0)))["scheduling_strategy"] == "SPREAD"


def test_nodes_to_avoid_are_named_and_taken_all_the_same_where_no_other_is() -> None:
    options = actor_options(ReplicaResources(cpus=1), _cluster((8, 0)), avoid={"b", "a"})
    assert options["label_selector"] == {"ray.io/node-id": "!in(a,b)"}
    assert options["fallback_strategy"] == [{"label_selector": {}}]


def test_nodes_that_cannot_have_a_replica_are_never_taken() -> None:
    ask, cluster = ReplicaResources(cpus=1), _cluster((8, 0))
    options = actor_options(ask, cluster, never={"c"})
    assert options["label_selector"] == {"ray.io/node-id": "!in(c)"}
    assert "fallback_strategy" not in options
    options = actor_options(ask, cluster, avoid={"b"}, never={"c"})
    assert options["label_selector"] == {"ray.io/node-id": "!in(b,c)"}
    assert options["fallback_strategy"] == [{"label_selector": {"ray.io/node-id": "!in(c)"}}]


def test_a_step_halves_what_runs_at_a_time() -> None:
    assert shrunk(VLLM, 0, 64) is VLLM
    assert shrunk(VLLM, 1, 64).arguments == {"max_num_seqs": 32, "max_num_batched_tokens": 4096}
    assert shrunk(SIMULATED, 2, 64).arguments == {"max_num_seqs": 16}
    assert shrunk(SIMULATED, 9, 64).arguments == {"max_num_seqs": 1}


def test_an_engine_hears_what_a_step_had_before_it_was_halved() -> None:
    """A model that reads images whole keeps enough of it to start: its engine knows the model."""
    own = replace(VLLM, arguments={"max_num_batched_tokens": 3000})
    assert (shrunk(VLLM, 2, 64).tokens_before, shrunk(own, 1, 64).tokens_before) == (8192, 3000)
    assert (shrunk(VLLM, 0, 64).tokens_before, shrunk(SIMULATED, 2, 64).tokens_before) == (0, 0)


def test_what_configures_engines_goes_along_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("DRAY_STORE_URL", "postgresql://u:secret@h/d")
    options = actor_options(ReplicaResources(cpus=1), _cluster((1, 0)))
    assert options["runtime_env"] == {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1"}}


@pytest.mark.parametrize(
    ("spec", "nodes", "expected"),
    [
        (VLLM, [(4, 0)], 1),
        (VLLM, [(4, 0), (8, 8), (8, 4)], 12),
        (TWO_RANKS, [(4, 0), (8, 8), (8, 5)], 6),
        (SIMULATED, [(8, 8)], 1),
    ],
)
def test_one_replica_a_gpu(spec: EngineSpec, nodes: list[tuple[float, float]], expected: int) -> None:
    assert default_replicas(spec, _cluster(*nodes)) == expected


@pytest.mark.parametrize(
    ("spec", "joined", "unjoined", "expected"),
    [
        (VLLM, [(0, 0), (4, 1)], (1, 1, 1), 4),
        (VLLM, [(0, 0)], (1, 1, 1, 1), 4),  # minimum = 0: none has joined yet
        (VLLM, [(0, 0), (4, 1)], (8, None), 10),  # one whose GPUs are not known holds one
        (TWO_RANKS, [(0, 0), (8, 8)], (1, 4), 6),  # one that is too small holds none
        (replace(VLLM, gpus=0.5), [(0, 0), (4, 1)], (1,), 4),
        (OVER_TWO, [(0, 0), (4, 1)], (1, 1), 1),
        (OVER_TWO, [(0, 0), (4, 1)], (1, 1, 1), 2),
        (VLLM, [(0, 0), (4, 0)], (0, 0), 1),  # machines without GPUs
        (replace(VLLM, gpus=0), [(0, 0), (4, 1)], (1, 1), 1),
        (SIMULATED, [(0, 0), (4, 1)], (1, 1), 1),
    ],
)
def test_rented_machines_that_have_not_joined_yet_get_replicas_too(
    spec: EngineSpec, joined: list[tuple[float, float]], unjoined: tuple[float | None, ...], expected: int
) -> None:
    """A job has this number to its end: machines that join a minute later would be idle for as long."""
    found = replace(_cluster(*joined), unjoined=unjoined)
    assert default_replicas(spec, found) == expected
    assert found.machines == sum(cpus > 0 for cpus, _ in joined) + len(unjoined)


def test_embeddings_shrink_in_rows_alone() -> None:
    spec = EngineSpec(name="vllm", model="m", kind=Kind.EMBEDDING)  # vLLM: a whole prompt must fit the tokens
    assert shrunk(spec, 1, 64).arguments == {"max_num_seqs": 32}


@pytest.mark.parametrize(
    ("engine", "arguments", "each", "settings", "build", "expected"),
    [
        ("simulated", {}, None, ClusterSettings(), "gpu", 1),
        ("vllm", {}, None, ClusterSettings(), "gpu", 4),
        ("vllm", {"tensor_parallel_size": 2}, None, ClusterSettings(), "gpu", 2),
        ("vllm", {}, 0.5, ClusterSettings(num_gpus=1), "gpu", 2),
        ("vllm", {}, 0.0, ClusterSettings(), "gpu", 1),
        ("vllm", {}, None, ClusterSettings(), "cpu", 1),
        ("vllm", {}, None, ClusterSettings(address="h:1"), "gpu", 8),
        ("vllm", {}, None, ClusterSettings(address="h:1"), "cpu", 1),
    ],
)
def test_shards_are_cut_for_the_replicas_that_may_come(
    engine: str,
    arguments: dict[str, Any],
    each: float | None,
    settings: ClusterSettings,
    build: str,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With --replicas left out, eight GPUs had three shards of 20,000 rows."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(placing, "_DEVICES", tmp_path)
    monkeypatch.setattr(placing, "vllm_build", lambda: build)
    assert expected_replicas(engine, arguments, each, settings) == expected


@pytest.mark.parametrize(
    ("gpus", "each", "fit"),
    [(1, 0.2, 5), (1, 0.1, 10), (8, 0.6, 8), (8, 0.3, 24), (8, 0.5, 16), (8, 2, 4), (8, 3, 2), (1, 2, 0)],
)
def test_a_part_of_a_gpu_is_of_one_gpu(gpus: float, each: float, fit: int) -> None:
    """Ray splits no part over two, and 1 / 0.2 is 5 though floats say 4."""
    assert replicas_on(gpus, each) == fit
    if fit:
        assert default_replicas(replace(VLLM, gpus=each), _cluster((64, gpus))) == fit
        room = Room(cpus=64, gpus=gpus, free_cpus=64, free_gpus=gpus)
        assert held(room, ReplicaResources(cpus=0.5, gpus=each)) == fit
