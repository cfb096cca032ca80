"""A local Ray cluster and the replicas on it, in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dray.cluster import Cluster, ClusterInfo, ClusterSettings, ReplicaPool, open_cluster
from dray.cluster.member import ReplicaHandle
from dray.cluster.pool import Ledger, Loss
from dray.engine.protocol import EngineSpec
from dray.errors import ClusterError, ConfigError
from dray.requests import Kind

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Cluster, ClusterInfo]]:
    handler = signal.getsignal(signal.SIGTERM)
    cluster = open_cluster(ClusterSettings(num_cpus=2))
    cluster.start()
    info = cluster.wait()
    assert signal.getsignal(signal.SIGTERM) is handler  # Prefect's handler would be lost otherwise
    yield cluster, info
    cluster.release()
    deadline = time.monotonic() + 15
    while left := _children():
        assert time.monotonic() < deadline, f"left after the release: {left}"
        time.sleep(0.1)


@pytest.fixture
def info(running: tuple[Cluster, ClusterInfo]) -> ClusterInfo:
    return running[1]


def _pool(
    info: ClusterInfo, name: str, replicas: int = 1, ledger: Ledger | None = None, **arguments: object
) -> ReplicaPool:
    spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments=dict(arguments))
    return ReplicaPool(name, spec, info, replicas, ledger)


def test_one_stable_node_behind_a_token(info: ClusterInfo) -> None:
    [node] = info.nodes
    assert node.stable
    assert node.cpus == 2
    assert info.stable_resource == "dray_stable"
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_only_one_cluster_in_a_process(info: ClusterInfo) -> None:
    second = open_cluster(ClusterSettings())
    second.start()
    with pytest.raises(ClusterError, match="connected to a Ray cluster already"):
        second.wait()


def test_sockets_of_vllms_ranks_go_with_rays_folder(info: ClusterInfo) -> None:
    import ray

    @ray.remote
    def seen() -> str:
        return os.environ["VLLM_RPC_BASE_PATH"]

    folder = Path(ray.get(seen.remote(), timeout=60))
    assert (folder / "dray.lock").is_file()
    assert len(str(folder)) + len("/") + 36 <= 107  # a UUID; sun_path of unix(7)


class _Ledger:
    """Keeps what a pool tells."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.losses: list[Loss] = []
        self.steps = 0
        self.bad: set[str] = set()

    def publish(self, members: Sequence[ReplicaHandle]) -> None:
        self.rows |= {member.name: member.state for member in members}

    def lost(self, loss: Loss) -> None:
        self.losses.append(loss)

    def excluded(self, lane: str) -> set[str]:
        return self.bad

    def shrink_steps(self) -> int:
        return self.steps


def _until(pool: ReplicaPool, done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        pool.look()
        pool.settle()
        time.sleep(0.1)


def test_a_killed_replica_has_a_successor(info: ClusterInfo, capfd: pytest.CaptureFixture[str]) -> None:
    ledger = _Ledger()
    pool = _pool(info, "replaced", replicas=2, ledger=ledger)
    pool.start()
    try:
        _until(pool, lambda: len(pool.starts()) == 2)
        starts = pool.starts()
        assert [start.name for start in starts] == ["replaced/replica-0", "replaced/replica-1"]
        assert {start.name for start in pool.take_ready()} == {start.name for start in starts}
        assert pool.take_ready() == []
        assert all(start.began < start.process < start.ready < time.time() for start in starts)
        before = {status.name: status.pid for status in pool.look()}
        os.kill(before["replaced/replica-0"], signal.SIGKILL)
        _until(pool, lambda: ledger.rows.get("replaced/replica-0~1") == "ready")
        assert ledger.rows["replaced/replica-0"] == "gone"
        after = {status.name: status.pid for status in pool.look()}
        assert set(after) == {"replaced/replica-0~1", "replaced/replica-1"}
        assert after["replaced/replica-1"] == before["replaced/replica-1"]
        assert pool.restarts == 1
        _until(pool, lambda: bool(ledger.losses))
        [loss] = ledger.losses
        assert (loss.name, loss.facts.alive, loss.facts.preempted) == ("replaced/replica-0", True, False)
        assert loss.node == info.nodes[0].node_id
        captured = capfd.readouterr()
        assert captured.out == captured.err == ""  # Ray's own words would break up the run's lines
    finally:
        pool.stop()
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{pid}").exists() for pid in after.values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_successor_runs_less_at_a_time_after_memory_did_not_suffice(info: ClusterInfo) -> None:
    ledger = _Ledger()
    pool = _pool(info, "smaller", max_num_seqs=64, ledger=ledger)
    pool.start()
    try:
        _until(pool, lambda: bool(pool.starts()))
        [status] = pool.look()
        ledger.steps = 2
        ledger.bad = {info.nodes[0].node_id}  # there is no other: it comes back here all the same
        os.kill(status.pid, signal.SIGKILL)
        _until(pool, lambda: len(pool.starts()) == 2)
        assert [start.info.max_num_seqs for start in pool.starts()] == [64, 16]
    finally:
        pool.stop()


def test_an_engine_that_cannot_be_built_says_why(info: ClusterInfo) -> None:
    pool = _pool(info, "refused", max_seqs=1)
    pool.start()
    try:
        with pytest.raises(ConfigError, match="unknown engine argument 'max_seqs'"):
            _until(pool, lambda: False)
    finally:
        pool.stop()


def test_a_lane_that_finds_no_place_keeps_nobody_from_work(info: ClusterInfo) -> None:
    import ray

    half = replace(info.nodes[0], cpus=1)
    halves = replace(info, own=False, nodes=(half, replace(half, node_id="another")))
    pool = _pool(halves, "late", replicas=2)  # a processor each, and somebody else has one of the two
    occupant = ray.remote(num_cpus=1)(_Occupant).remote()
    ray.get(occupant.here.remote(), timeout=60)
    pool.start()
    try:
        _until(pool, lambda: bool(pool.starts()))
        time.sleep(1.0)
        pool.look()
        assert len(pool.starts()) == 1
        ray.kill(occupant)
        _until(pool, lambda: len(pool.starts()) == 2)
    finally:
        pool.stop()


class _Occupant:
    def here(self) -> None:
        """It has its place."""


def _children() -> list[str]:
    """Ray's processes below this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        ours = any(word in title for word in ("dray.cluster.head", "raylet", "gcs_server", "ray::"))
        if int(fields[1]) == os.getpid() and fields[0] != "Z" and ours:
            found.append(title[:100])
    return found
