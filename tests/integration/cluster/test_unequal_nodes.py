"""A cluster as users have it: a small head marked with ``dray_stable: 1``, and nodes of unequal size."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from dray.cluster import asking, open_cluster
from dray.cluster.asking import Ask
from dray.cluster.pool import ReplicaPool
from dray.cluster.ray_private import death_of, node_of
from dray.engine.protocol import EngineSpec
from dray.requests import Kind
from tests.support.chaos import Job
from tests.support.raylets import Raylets, Shape

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

REPLICAS = 3
SEQS = 8
SECONDS_PER_TOKEN = 0.1
TOKENS = 8
IDEAL = REPLICAS * SEQS / (SECONDS_PER_TOKEN * TOKENS)  # rows a second


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    """A head with two processors and three workers with one each."""
    shape = Shape(head_cpus=2, cpus=1, stable=1)
    found = Raylets(tmp_path_factory.mktemp("raylets"), 4, shape=shape)
    yield found
    found.stop()


@pytest.fixture
def make_job(raylets: Raylets, tmp_path: Path) -> Callable[..., Job]:
    def make(**changes: object) -> Job:
        values: dict[str, object] = {
            "rows": 600,
            "replicas": REPLICAS,
            "settings": (f"max_num_seqs={SEQS}", f"seconds_per_token={SECONDS_PER_TOKEN}"),
            "more": ("--shard-rows", "25"),
            "max_tokens": TOKENS,
        }
        return Job(raylets=raylets, folder=tmp_path, **{**values, **changes})  # type: ignore[arg-type]

    return make


def _answered(job: Job) -> Counter[str]:
    """Rows by replica."""
    found: Counter[str] = Counter()
    for attempt in job.attempts():
        found[(attempt.replica or "").rsplit("/", 1)[-1]] += attempt.done
    return found


def test_every_replica_works_on_unequal_nodes(make_job: Callable[..., Job]) -> None:
    """A mark of 1 held one shard task, and two CPUs for each replica left two of three without a place."""
    job = make_job()
    run = job.start()
    ended = run.wait()
    job.ended_well(ended)
    answered = _answered(job)
    rate = job.rows / ended.json["seconds"]["inference"]
    print(f"{dict(answered)}; {rate:.0f} rows/s, {rate / IDEAL:.2f} of the ideal rate of {REPLICAS} replicas")
    assert set(answered) == {f"replica-{lane}" for lane in range(REPLICAS)}
    assert min(answered.values()) >= job.rows / REPLICAS / 2
    assert f"replicas: {REPLICAS}, each with 1 CPU" in ended.stderr
    assert "wait: each asks" not in ended.stderr


def test_gpus_are_asked_of_ray_while_no_node_has_any(
    raylets: Raylets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An autoscaler starts nodes for what is asked of Ray: its head has to hold the demand."""
    monkeypatch.setattr(asking, "vllm_build", lambda: "gpu")
    cluster = open_cluster(raylets.settings)
    cluster.start()
    try:
        pool = ReplicaPool("demand/1", EngineSpec(name="vllm", model="m", kind=Kind.CHAT), cluster.wait(), 2)
        assert pool.ask == Ask(cpus=1, gpus=1)
        pool.start()
        deadline = time.monotonic() + 30
        while pool.waiting() is None or not _demands():
            assert time.monotonic() < deadline, (pool.waiting(), _demands())
            pool.look()
            time.sleep(0.5)
        assert _demands() == [({"CPU": 1.0, "GPU": 1.0}, 2)]
        assert (pool.waiting() or "").startswith(
            "2 of 2 replicas wait: each asks for 1 GPU and 1 CPU, no node has a GPU; it waits until"
        )
        assert [node_of(member.replica.actor_id) for member in pool._members] == [None, None]
        pool.stop()
        _assert_a_dead_actor_has_its_node()
    finally:
        cluster.release()


def _assert_a_dead_actor_has_its_node() -> None:
    """A loss is charged to the node that the replica was on."""
    actor = ray.remote(_Nothing).options(num_cpus=0).remote()
    ray.get(actor.there.remote())
    actor_id = actor._actor_id.hex()
    node = node_of(actor_id)
    assert node is not None
    ray.kill(actor)
    deadline = time.monotonic() + 30
    while death_of(actor_id) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert node_of(actor_id) == node


class _Nothing:
    def there(self) -> None:
        """Answer."""


def _demands() -> list[tuple[dict[str, float], int]]:
    """What Ray's head would tell an autoscaler that nobody can have yet."""
    from ray._private.worker import global_worker
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    pending = get_cluster_resource_state(global_worker.gcs_client).pending_resource_requests
    return [(dict(one.request.resources_bundle), one.count) for one in pending]
