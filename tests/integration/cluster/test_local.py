"""A local Ray cluster and the replicas on it, in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.cluster import Cluster, ClusterInfo, ClusterSettings, ReplicaPool, open_cluster
from dray.cluster import pool as pool_module
from dray.cluster.pool import wait_for_replica
from dray.engine.protocol import EngineSpec
from dray.errors import CancelledError, ClusterError, ConfigError, EngineStartError, ReplicaLostError
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


def _pool(info: ClusterInfo, name: str, replicas: int = 1, **arguments: object) -> ReplicaPool:
    spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments=dict(arguments))
    return ReplicaPool(name, spec, info, replicas)


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


def test_a_killed_replica_is_replaced_under_its_name(
    info: ClusterInfo, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = _pool(info, "replaced", replicas=2)
    pool.start()
    try:
        starts = pool.wait_ready(60)
        assert [start.name for start in starts] == ["replaced/replica-0", "replaced/replica-1"]
        assert all(start.began < start.process < start.ready < time.time() for start in starts)
        before = {status.name: status.pid for status in pool.look()}
        os.kill(before["replaced/replica-0"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while pool.restarts == 0:
            assert time.monotonic() < deadline
            pool.look()
            time.sleep(0.2)
        _, engine = wait_for_replica("replaced/replica-0", timeout=60)
        assert engine.engine == "simulated"
        after = {status.name: status.pid for status in pool.look()}
        assert after["replaced/replica-0"] != before["replaced/replica-0"]
        assert after["replaced/replica-1"] == before["replaced/replica-1"]
        captured = capfd.readouterr()
        assert captured.out == captured.err == ""  # Ray's own words would break up the run's lines
    finally:
        pool.stop()
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{pid}").exists() for pid in after.values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_crash_loop_ends(info: ClusterInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_RESTARTS", 1)
    pool = _pool(info, "loop")
    pool.start()
    try:
        with pytest.raises(EngineStartError, match="giving up on job loop"):
            while True:
                pool.wait_ready(60)
                for status in pool.look():
                    os.kill(status.pid, signal.SIGKILL)
                time.sleep(0.5)
    finally:
        pool.stop()


def test_an_engine_that_cannot_be_built_says_why(info: ClusterInfo) -> None:
    pool = _pool(info, "refused", max_seqs=1)
    pool.start()
    try:
        with pytest.raises(ConfigError, match="unknown engine argument 'max_seqs'"):
            pool.wait_ready(60)
    finally:
        pool.stop()


def test_waiting_for_a_replica_ends(info: ClusterInfo) -> None:
    with pytest.raises(ReplicaLostError, match="did not come back"):
        wait_for_replica("nobody/replica-0", timeout=0.5)
    with pytest.raises(CancelledError):
        wait_for_replica("nobody/replica-0", timeout=60, stopped=lambda: True)


def test_a_slow_start_can_be_given_up(info: ClusterInfo) -> None:
    pool = _pool(info, "slow", start_seconds=120)
    pool.start()
    began = time.monotonic()
    try:
        with pytest.raises(EngineStartError, match="not ready after 0 s"):
            pool.wait_ready(0.3)
        with pytest.raises(CancelledError):
            pool.wait_ready(120, stopped=lambda: True)
        with pytest.raises(CancelledError):
            wait_for_replica("slow/replica-0", timeout=60, stopped=lambda: time.monotonic() > began + 1)
    finally:
        pool.stop()
    assert time.monotonic() - began < 30


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
