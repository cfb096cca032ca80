"""A cluster as users have it: a small head marked with ``dray_stable: 1``, and nodes of unequal size."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
import ray

from dray.cli.app import run_app
from dray.cluster import asking, open_cluster
from dray.cluster.asking import ReplicaResources
from dray.cluster.placing import let_go, reserve
from dray.cluster.ray_fleet import RayFleet
from dray.cluster.ray_private import death_of, node_of
from dray.driver.replicas.pool import ReplicaPool
from dray.driver.run import Driver
from dray.driver.telling.observers import LogObserver
from dray.driver.whole_job import engine_spec
from dray.engine.followers import Followers
from dray.engine.part_ends import note_end, take_end
from dray.engine.protocol import EngineSpec
from dray.errors import ReplicaLostError
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.kinds import Kind
from dray.report import ReportData
from dray.requests.sources import RowDefaults, source_of
from dray.shard.task import RayReplicas
from dray.store import JobState, ReplicaState, Store, open_store
from tests.chaos.soak_driver import DeafFleet
from tests.support.command import write_requests
from tests.support.followers import FOLLOWER, processes_on
from tests.support.raylets import Raylets, Shape
from tests.support.thread_executor import ThreadExecutor
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

SEQS = 8
SECONDS_PER_TOKEN = 0.1
TOKENS = 8


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    """A head with two processors and three workers with one each."""
    shape = Shape(head_cpus=2, cpus=1, stable=1)
    found = Raylets(tmp_path_factory.mktemp("raylets"), 4, shape=shape)
    yield found
    found.stop()


class _Driven:
    """A job whose driver is this process: real store, real Ray, replicas as its actors, shards in threads."""

    def __init__(self, raylets: Raylets, folder: Path, rows: int) -> None:
        folder.mkdir(exist_ok=True)
        self.store = f"sqlite:///{folder / 'jobs.db'}"
        self.job = open_job(
            JobSettings(
                source=source_of(str(write_requests(folder / "in.jsonl", rows, max_tokens=TOKENS))),
                defaults=RowDefaults(),
                model="simulated",
                output=str(folder / "out"),
                store_url=self.store,
                engine="simulated",
                engine_arguments={"max_num_seqs": SEQS, "seconds_per_token": SECONDS_PER_TOKEN},
                job_id="job",
                shard_rows=20,
            )
        )
        self.cluster = open_cluster(raylets.settings)

    def run(self, lanes: int, until: Callable[[Store], bool]) -> ReportData:
        """Run its shards on so many replicas until something came true, and cancel it; its report."""
        job, timeline = self.job, Timeline(time.time())
        shards = ingest_job(job, replicas=lanes)
        self.cluster.start()
        fleet = DeafFleet(self.cluster.wait())
        watch = Thread(target=self._cancel, args=(until,))
        watch.start()
        observers = [LogObserver(logging.getLogger("run"))]
        executor = ThreadExecutor(RayReplicas())
        spec = engine_spec(job)
        driver = Driver(job, fleet, executor, observers, spec=spec, shards=shards, replicas=lanes)
        with driver:
            driver.until_ready()
            driver.run()
        watch.join()
        finalise_job(job, timeline, state=JobState.CANCELLED)
        with open_store(self.store, create=False) as store:
            return ReportData.from_json(store.get_job("job").summary["report"])

    def _cancel(self, until: Callable[[Store], bool]) -> None:
        deadline = time.monotonic() + 120
        with open_store(self.store, create=False) as store:
            while not until(store) and time.monotonic() < deadline:
                time.sleep(0.5)
            store.request_cancel("job")


def test_a_replica_without_a_place_is_named_with_the_reason_and_works_once_a_node_joins(
    raylets: Raylets,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seven replicas, five processors: two wait, and one of them gets the node that comes."""
    caplog.set_level(logging.INFO)
    reason = "asks for 1 CPU, the largest free node has 0 CPUs"
    driven = _Driven(raylets, tmp_path, rows=6000)
    said: list[str] = []
    waited: list[str] = []
    nodes: list[str] = []

    def until(store: Store) -> bool:
        rows = store.replicas("job")
        waiting = [row for row in rows if row.note == reason]
        if not nodes:
            if len(waiting) == 2 and sum(row.state is ReplicaState.READY for row in rows) == 5:
                waited[:] = [row.name for row in waiting]
                run_app(["status", "job", "--store", driven.store, "--json"])
                run_app(["status", "job", "--store", driven.store])
                said.append(capsys.readouterr().out)
                nodes.append(raylets.add())
            return False
        late = {row.name for row in rows if row.node == nodes[0]}
        return any(attempt.replica in late and attempt.done for attempt in store.attempts("job"))

    try:
        data = driven.run(7, until)
    finally:
        driven.cluster.release()
    with open_store(driven.store, create=False) as store:
        [late] = [row.name for row in store.replicas("job") if row.node == nodes[0]]
    assert late in waited
    [left] = set(waited) - {late}
    told = json.loads(said[0].splitlines()[0])["replicas"]
    assert [(one["state"], one["node"]) for one in told if one["note"] == reason] == [("starting", None)] * 2
    names = ", ".join(name.rsplit("/", 1)[-1] for name in sorted(waited))
    assert f"{names}: each {reason}" in said[0]
    assert f"2 of 7 replicas wait: each {reason}" in caplog.text
    assert f"1 of 7 replicas wait: each {reason}" in caplog.text
    assert data.unused == {left.rsplit("/", 1)[-1]: reason}


def test_gpus_are_asked_of_ray_while_no_node_has_any(
    raylets: Raylets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An autoscaler starts nodes for what is asked of Ray: its head has to hold the demand."""
    monkeypatch.setattr(asking, "vllm_build", lambda: "gpu")
    cluster = open_cluster(raylets.settings)
    cluster.start()
    try:
        spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)
        pool = ReplicaPool("demand/1", spec, RayFleet(cluster.wait()), 2)
        assert pool.ask == ReplicaResources(cpus=1, gpus=1)
        pool.launch_due(_NoLosses())
        deadline = time.monotonic() + 30
        while pool.waiting() is None or not _demands():
            assert time.monotonic() < deadline, (pool.waiting(), _demands())
            pool.look()
            time.sleep(0.5)
        assert _demands() == [({"CPU": 1.0, "GPU": 1.0}, 2)]
        assert (pool.waiting() or "").startswith(
            "2 of 2 replicas wait: each asks for 1 GPU and 1 CPU, no node has a GPU; it waits until"
        )
        assert [one.process.node() for one in pool._replicas] == [None, None]
        pool.stop()
        _assert_a_dead_actor_has_its_node()
    finally:
        cluster.release()


def test_a_part_of_an_engine_that_is_lost_leaves_word_of_its_log(
    raylets: Raylets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process stands for the replica's, whose engine has a part on another node."""
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    cluster = open_cluster(raylets.settings)
    cluster.start()
    try:
        cluster.wait()
        group = reserve(ReplicaResources(cpus=1, nodes=2), (), avoid=())
        spec = EngineSpec(
            name="simulated",
            model="m",
            kind=Kind.CHAT,
            arguments={"nnodes": 2, "tensor_parallel_size": 2},
        )
        note_end("job/1/replica-0", "a node of an earlier job")
        parts = Followers("job/1/replica-0", spec, group)
        assert take_end("job/1/replica-0") is None
        until(lambda: bool(processes_on(raylets.nodes, FOLLOWER)))
        ((node, process),) = processes_on(raylets.nodes, FOLLOWER).items()
        ray.get(parts._parts[0].where)
        process.kill()
        lost = parts.ended(60.0)
        assert isinstance(lost, ReplicaLostError)
        text = str(lost)
        assert text.startswith("replica job/1/replica-0, its part on node 2 of 2 was lost")
        log = re.search(rf"; its log: {socket.gethostname()}:(/\S+\.out), (/\S+\.err)$", text)
        assert log is not None, text
        assert all(Path(name).is_file() for name in log.groups())
        assert take_end("job/1/replica-0") == node
        let_go(group)
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


class _NoLosses:
    """No replica of the job was ever lost."""

    def excluded(self, lane: str) -> set[str]:
        return set()

    def shrink_steps(self) -> int:
        return 0

    def undecided(self, lane: str) -> bool:
        return False


class _Nothing:
    def there(self) -> None:
        """Answer."""


def _demands() -> list[tuple[dict[str, float], int]]:
    """What Ray's head would tell an autoscaler that nobody can have yet."""
    from ray._private.worker import global_worker
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    pending = get_cluster_resource_state(global_worker.gcs_client).pending_resource_requests
    return [(dict(one.request.resources_bundle), one.count) for one in pending]
