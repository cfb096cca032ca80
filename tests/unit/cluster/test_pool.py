"""What a replica asks Ray for, and how many there are."""

from __future__ import annotations

import pytest

from dray.cluster.base import ClusterInfo, Node
from dray.cluster.placing import actor_options, default_replicas, shrunk
from dray.cluster.pool import lane_of, replica_name
from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.requests import Kind

pytestmark = pytest.mark.unit

VLLM = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)
TWO_RANKS = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={"tensor_parallel_size": 2})
SIMULATED = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)


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


def test_the_simulated_engine_takes_no_processor_from_anybody() -> None:
    assert actor_options(SIMULATED, _cluster((8, 4)), 1) == {"num_cpus": 0}


def test_on_several_nodes_replicas_spread() -> None:
    assert actor_options(SIMULATED, _cluster((0, 0), (2, 0), (2, 0)), 2) == {"num_cpus": 2}
    assert actor_options(VLLM, _cluster((2, 0), (2, 0)), 3) == {"num_cpus": 1}
    assert actor_options(VLLM, _cluster((2, 0), (2, 0)), 8) == {"num_cpus": 0.5}


def test_nodes_to_avoid_are_named_and_taken_all_the_same_where_no_other_is() -> None:
    options = actor_options(SIMULATED, _cluster((8, 0)), 1, avoid={"b", "a"})
    assert options["label_selector"] == {"ray.io/node-id": "!in(a,b)"}
    assert options["fallback_strategy"] == [{"label_selector": {}}]


def test_a_step_halves_what_runs_at_a_time() -> None:
    assert shrunk(VLLM, 0, 64) is VLLM
    assert shrunk(VLLM, 1, 64).arguments == {"max_num_seqs": 32, "max_num_batched_tokens": 4096}
    assert shrunk(SIMULATED, 2, 64).arguments == {"max_num_seqs": 16}
    assert shrunk(SIMULATED, 9, 64).arguments == {"max_num_seqs": 1}


def test_one_gpu_a_replica_where_there_are_gpus() -> None:
    assert actor_options(VLLM, _cluster((4, 0), (32, 8)), 8) == {"num_gpus": 1, "num_cpus": 1}


@pytest.mark.parametrize(("cpus", "replicas", "expected"), [(8, 1, 8.0), (8, 3, 2.0), (2, 4, 0.5)])
def test_the_processors_are_shared_without(cpus: float, replicas: int, expected: float) -> None:
    assert actor_options(VLLM, _cluster((cpus, 0)), replicas) == {"num_cpus": expected}


def test_what_configures_engines_goes_along_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("DRAY_STORE_URL", "postgresql://u:secret@h/d")
    options = actor_options(SIMULATED, _cluster((1, 0)), 1)
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


def test_a_replica_of_several_ranks_has_a_gpu_for_each() -> None:
    assert actor_options(TWO_RANKS, _cluster((32, 8)), 4)["num_gpus"] == 2


def test_names_belong_to_the_job() -> None:
    assert replica_name("job/1", 3) == "job/1/replica-3"
    assert replica_name("job/1", 3, 2) == "job/1/replica-3~2"
    assert lane_of("job/1/replica-3~2") == lane_of("job/1/replica-3") == "replica-3"


def test_a_replica_larger_than_any_node_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"needs 2 GPUs of one node .* largest has 1"):
        actor_options(TWO_RANKS, _cluster((8, 0), (8, 1)), 1)


def test_embeddings_shrink_in_rows_alone() -> None:
    spec = EngineSpec(name="vllm", model="m", kind=Kind.EMBEDDING)  # vLLM: a whole prompt must fit the tokens
    assert shrunk(spec, 1, 64).arguments == {"max_num_seqs": 32}
