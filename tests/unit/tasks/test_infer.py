"""Shard tasks of a job: what the flow does when one of them ends, with the real store and without Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.states import Crashed

from dray.cluster import ClusterInfo, Node
from dray.errors import JobPausedError
from dray.job.lapsed import LapsedLeases
from dray.job.opening import OpenJob
from dray.store import JobLease, ReplicaRow, ReplicaState, Shard, ShardState, Store, open_store
from tasks import infer
from tasks.infer import ShardTasks
from tasks.monitor import Monitor
from tests.support.stores import FakeClock, claimed, ready_job

pytestmark = pytest.mark.unit

CLUSTER = ClusterInfo(address="a", nodes=(), seconds=0.0, stable_resource="dray_stable")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[Store]:
    with open_store(url, clock=clock) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer, "get_run_logger", logging.getLogger)


def _tasks(url: str, lease: JobLease, shards: list[Shard], *, lanes: int = 1) -> ShardTasks:
    job = SimpleNamespace(job_id=lease.job_id, lease=lease, settings=SimpleNamespace(store_url=url))
    return ShardTasks(cast("OpenJob", job), shards, lanes, CLUSTER)


def _crash(tasks: ShardTasks, shard: Shard) -> None:
    """The worker process of a shard's task died."""
    reference: Any = object()
    future = SimpleNamespace(wait=lambda: None, state=Crashed(), task_run_id=uuid4())
    tasks._running[reference] = (future, shard)
    tasks._take(reference)


def test_a_shard_whose_worker_died_is_to_be_had_at_once(store: Store, url: str) -> None:
    lease = ready_job(store)
    claimed(store, lease)
    shard = store.shards("job")[0]
    _crash(_tasks(url, lease, [shard]), shard)
    assert store.shards("job")[0].state is ShardState.PENDING


def test_a_driver_that_was_replaced_leaves_its_successors_shards_alone(store: Store, url: str) -> None:
    old = ready_job(store)
    new = store.claim_job("job", "two", takeover=lambda owner: True)
    claimed(store, new)
    shard = store.shards("job")[0]
    _crash(_tasks(url, old, [shard]), shard)
    assert store.shards("job")[0].state is ShardState.LEASED


def test_a_suspect_goes_beyond_the_limit_when_those_that_fill_it_wait_for_its_replica(
    store: Store, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempt ended without the store, so it was held until its lease lapsed."""
    submitted: list[int] = []

    def submit(_runner: object, _job: object, shard: Shard) -> Any:
        submitted.append(shard.number)
        return SimpleNamespace(wrapped_future=object())

    monkeypatch.setattr(infer, "_submit", submit)
    lease = ready_job(store, shards=5)
    row = ReplicaRow(name="a", lane=0, state=ReplicaState.READY, slots=2, node="n", max_num_seqs=4)
    store.put_replicas(lease, [row])
    store.release_shard(claimed(store, lease), cause="ENGINE_CRASH", suspect=True)
    assert store.place_shard(lease, 0, owner="w0").lease is not None  # alone, and its holder is gone
    tasks = _tasks(url, lease, [])
    monkeypatch.setattr(Store, "now", lambda _: clock.time)
    for _ in range(2):  # while it is held, and when its lease has lapsed
        tasks._look_at = 0.0
        tasks._refresh()
        tasks._fill()
        clock.pass_seconds(100)
    assert [store.place_shard(lease, number, owner=f"w{number}").waiting for number in (1, 2)] == [True, True]
    assert submitted == [1, 2, 0]  # and no more of those that may wait
    assert store.place_shard(lease, 0, owner="again").lease is not None


def test_a_shard_whose_task_stands_still_is_run_again(
    store: Store, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is stopped, or hangs in the kernel: the job waited for it without an end."""
    submitted: list[int] = []
    cancelled: list[object] = []

    def submit(_runner: object, _job: object, shard: Shard) -> Any:
        submitted.append(shard.number)
        return SimpleNamespace(wrapped_future=object(), task_run_id=uuid4())

    monkeypatch.setattr(infer, "_submit", submit)
    monkeypatch.setattr(infer.ray, "cancel", lambda reference, *, force: cancelled.append(reference))
    monkeypatch.setattr(Store, "now", lambda _: clock.time)
    lease = ready_job(store, shards=1)
    tasks = _tasks(url, lease, store.shards("job"))
    tasks._lapsed = LapsedLeases(infer.HUNG_SECONDS, lambda: clock.time)
    tasks._fill()
    hung = claimed(store, lease)
    assert tasks._look_at <= time.monotonic() + infer._LOOK_AT_LEAST

    def look() -> None:
        tasks._look_at = 0.0
        tasks._refresh()
        tasks._fill()

    def pass_until_given_up() -> None:
        clock.pass_seconds(hung.ttl + 1)
        look()
        clock.pass_seconds(infer.HUNG_SECONDS + 1)
        look()

    clock.pass_seconds(hung.ttl + infer.HUNG_SECONDS + 1)
    look()  # the lease is over; by the driver's own clock only now
    clock.pass_seconds(infer.HUNG_SECONDS - 1)
    look()
    assert (submitted, cancelled) == ([0], [])  # it may be about to end by itself
    clock.pass_seconds(2)
    look()
    assert submitted == [0, 0]
    assert len(cancelled) == 1
    again = store.place_shard(lease, 0, owner="again")
    assert again.lease is not None or again.waiting
    for _ in range(infer.MAX_CRASHES - 1):
        store.claim_shard(lease, 0, owner="hangs, too")
        pass_until_given_up()
    store.claim_shard(lease, 0, owner="hangs, too")
    with pytest.raises(JobPausedError, match="stands still"):
        pass_until_given_up()


def test_no_task_stands_still_while_the_store_takes_no_writes(
    store: Store, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite another program may keep all writers out: shards are read, and no lease can be renewed."""
    monkeypatch.setattr(Store, "now", lambda _: clock.time)
    lease = ready_job(store, shards=1)
    tasks = _tasks(url, lease, store.shards("job"))
    tasks._lapsed = LapsedLeases(infer.HUNG_SECONDS, lambda: clock.time)
    future = SimpleNamespace(wrapped_future=object(), task_run_id=uuid4())
    monkeypatch.setattr(infer, "_submit", lambda *_: future)
    tasks._fill()
    held = claimed(store, lease)
    monitor = SimpleNamespace(stopping=False, store_away=True, check=lambda: None, bound="", ready=0)
    rounds = iter(range(5))

    def collect() -> None:
        clock.pass_seconds(held.ttl + infer.HUNG_SECONDS)
        tasks._look_at = 0.0
        if next(rounds, None) is None:
            tasks._running.clear()
            monitor.stopping = True

    monkeypatch.setattr(tasks, "_collect", collect)
    tasks.run(cast("Monitor", monitor))
    assert not tasks._crashes


def test_shard_tasks_follow_the_replicas_that_are_ready(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a process of its own on a stable node: 1,000 while no engine is up would fill the head."""
    submitted: list[int] = []

    def submit(_runner: object, _job: object, shard: Shard) -> Any:
        submitted.append(shard.number)
        return SimpleNamespace(wrapped_future=object())

    monkeypatch.setattr(infer, "_submit", submit)
    lease = ready_job(store, shards=60)
    tasks = _tasks(url, lease, store.shards("job"), lanes=20)
    tasks._fill()
    assert len(submitted) == infer._EARLY
    at_work = iter([0, 3, 10, 4, 20])
    monitor = SimpleNamespace(stopping=False, store_away=False, check=lambda: None, bound="", ready=0)

    def collect() -> None:
        counts.append(len(submitted))
        monitor.ready = next(at_work, 0)
        if len(counts) > 5:
            tasks._running.clear()
            monitor.stopping = True

    counts: list[int] = []
    monkeypatch.setattr(tasks, "_collect", collect)
    tasks.run(cast("Monitor", monitor))
    assert counts == [8, 8, 14, 28, 28, 40]  # what runs goes on when fewer are ready


def test_what_bounds_the_shard_tasks_is_told_at_the_start(
    store: Store, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    lease = ready_job(store)
    node = Node(node_id="h", host="h", cpus=2, gpus=0, stable=True, memory=2 * 2**30)
    spot = Node(node_id="s", host="s", cpus=2, gpus=0, stable=False, memory=2**40)
    cluster = ClusterInfo(address="a", nodes=(node, spot), seconds=0.0, stable_resource="dray_stable")
    job = SimpleNamespace(job_id=lease.job_id, lease=lease, settings=SimpleNamespace(store_url=url))
    bound = infer.bound_tasks(cast("OpenJob", job), 20, cluster)
    assert bound.tasks == 7
    assert "20 replicas, but the memory of the stable nodes (2 GiB) holds 7 shard tasks" in caplog.text
    caplog.clear()
    assert infer.bound_tasks(cast("OpenJob", job), 3, cluster).tasks == 6
    assert caplog.text == ""
