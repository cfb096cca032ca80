"""A local Ray cluster and the replicas on it, in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from dray.cluster import Cluster, ClusterInfo, ClusterSettings, open_cluster
from dray.cluster.asking import ReplicaResources
from dray.cluster.placing import actor_options
from dray.cluster.ray_fleet import RayFleet
from dray.driver.replicas.handle import Loss, ReplicaStart
from dray.driver.replicas.pool import ReplicaPool
from dray.engine.client import RayReplica
from dray.engine.protocol import EngineSpec
from dray.engine.replica import actor_class
from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.model import Request
from dray.requests.spool.spool import encode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Cluster, ClusterInfo]]:
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    cluster = open_cluster(ClusterSettings(num_cpus=2))
    cluster.start()
    info = cluster.wait()
    assert signal.getsignal(signal.SIGTERM) is handler  # Prefect's handler would be lost otherwise
    yield cluster, info
    cluster.release()
    with ThreadPoolExecutor() as late, pytest.raises(Exception, match="Ray has not been started"):
        late.submit(ray.put, 1).result()  # of a thread that outlasts its job: Ray started a cluster for it
    deadline = time.monotonic() + 15
    while left := _children():
        assert time.monotonic() < deadline, f"left after the release: {left}"
        time.sleep(0.1)


@pytest.fixture
def info(running: tuple[Cluster, ClusterInfo]) -> ClusterInfo:
    return running[1]


class _Budgets:
    """What earlier losses came to: ``steps`` smaller, and no more on ``bad`` nodes."""

    def __init__(self) -> None:
        self.steps = 0
        self.bad: set[str] = set()

    def excluded(self, lane: str) -> set[str]:
        return self.bad

    def shrink_steps(self) -> int:
        return self.steps

    def undecided(self, lane: str) -> bool:
        return False


class _Followed:
    """A pool on Ray, looked after as its driver does it. Keeps what the pool tells."""

    def __init__(self, info: ClusterInfo, name: str, replicas: int = 1, **arguments: object) -> None:
        spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments=dict(arguments))
        self.pool = ReplicaPool(name, spec, RayFleet(info), replicas)
        self.budgets = _Budgets()
        self.states: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.losses: list[Loss] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.stop()

    @property
    def starts(self) -> list[ReplicaStart]:
        return self.pool.starts()

    def step(self) -> None:
        self.pids |= {status.name: status.pid for status in self.pool.look()}
        self.losses += self.pool.take_losses()
        self.pool.launch_due(self.budgets)
        self.states |= {one.name: one.state for one in self.pool.take_changed()}

    def until(self, done: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline
            self.step()
            time.sleep(0.1)


def test_ray_starts_without_what_one_node_does_not_use(info: ClusterInfo) -> None:
    below = psutil.Process().children(recursive=True)
    said = " ".join(" ".join(process.cmdline()) for process in below)
    assert "gcs_server" in said
    assert [name for name in ("monitor.py", "dashboard.py") if name in said] == []  # log_monitor.py, too
    agents = [process for process in below if _is_agent(process)]
    assert len(agents) == 2
    for agent in agents:  # neither has imported anything
        assert any(word.endswith("waiting_agent.py") for word in agent.cmdline())
        assert agent.memory_info().rss < 32 << 20


def _is_agent(process: psutil.Process) -> bool:
    return any(word.endswith(("dashboard/agent.py", "agent/main.py")) for word in process.cmdline())


def test_an_agent_starts_for_variables_that_processes_do_not_inherit(info: ClusterInfo) -> None:
    import ray

    found = ray.remote(os.getenv).options(num_cpus=0, runtime_env={"env_vars": {"DRAY_TEST_SEEN": "1"}})
    assert ray.get(found.remote("DRAY_TEST_SEEN"), timeout=60) == "1"


def test_a_replica_is_told_no_variable_that_it_inherits(
    info: ClusterInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ReplicaResources(cpus=0)
    monkeypatch.setenv("VLLM_DRAY_TEST", "1")
    assert actor_options(ask, info)["runtime_env"]["env_vars"] == {"VLLM_DRAY_TEST": "1"}
    assert "runtime_env" not in actor_options(
        ask, replace(info, inherited={**info.inherited, "VLLM_DRAY_TEST": "1"})
    )


def test_one_stable_node_behind_a_token(info: ClusterInfo) -> None:
    [node] = info.nodes
    assert node.stable
    assert node.cpus == 2
    assert info.stable_resource == "dray_stable"
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_only_one_cluster_in_a_process(info: ClusterInfo) -> None:
    """Said before the job reads its input."""
    with pytest.raises(ConfigError, match=r"connected to Ray already.* a process of its own"):
        open_cluster(ClusterSettings())


def test_sockets_of_vllms_ranks_go_with_rays_folder(info: ClusterInfo) -> None:
    import ray

    def seen() -> str:
        return os.environ["VLLM_RPC_BASE_PATH"]

    folder = Path(ray.get(ray.remote(seen).remote(), timeout=60))
    assert (folder / "dray.lock").is_file()
    assert len(str(folder)) + len("/") + 36 <= 107  # a UUID; sun_path of unix(7)


def test_a_killed_replica_has_a_successor(info: ClusterInfo, capfd: pytest.CaptureFixture[str]) -> None:
    with _Followed(info, "replaced", replicas=2) as followed:
        followed.until(lambda: len(followed.starts) == 2 and len(followed.pids) == 2)
        starts = followed.starts
        assert [start.name for start in starts] == ["replaced/replica-0", "replaced/replica-1"]
        assert {start.name for start in followed.pool.take_ready()} == {start.name for start in starts}
        assert followed.pool.take_ready() == []
        assert all(start.began < start.process < start.ready < time.time() for start in starts)
        before = dict(followed.pids)
        os.kill(before["replaced/replica-0"], signal.SIGKILL)
        followed.until(lambda: "replaced/replica-0~1" in followed.pids)
        assert followed.states["replaced/replica-0"] == "gone"
        assert followed.states["replaced/replica-0~1"] == "ready"
        after = followed.pids
        assert set(after) == {*before, "replaced/replica-0~1"}
        assert after["replaced/replica-1"] == before["replaced/replica-1"]
        [loss] = followed.losses
        assert (loss.replica.name, loss.replica.node) == ("replaced/replica-0", info.nodes[0].node_id)
        facts = loss.replica.process.fate()
        assert (facts.alive, facts.preempted) == (True, False)
        captured = capfd.readouterr()
        assert captured.out == captured.err == ""  # Ray's own words would break up the run's lines
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{pid}").exists() for pid in after.values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_successor_runs_less_at_a_time_after_memory_did_not_suffice(info: ClusterInfo) -> None:
    with _Followed(info, "smaller", max_num_seqs=64) as followed:
        followed.until(lambda: bool(followed.pids))
        followed.budgets.steps = 2
        followed.budgets.bad = {info.nodes[0].node_id}  # there is no other: it comes back here all the same
        [pid] = followed.pids.values()
        os.kill(pid, signal.SIGKILL)
        followed.until(lambda: len(followed.starts) == 2)
        assert [start.info.max_num_seqs for start in followed.starts] == [64, 16]


def test_an_engine_that_cannot_be_built_says_why(info: ClusterInfo) -> None:
    with (
        _Followed(info, "refused", max_seqs=1) as followed,
        pytest.raises(ConfigError, match="unknown engine argument 'max_seqs'"),
    ):
        followed.until(lambda: False)


@pytest.mark.heavy
def test_a_lane_that_finds_no_place_keeps_nobody_from_work(info: ClusterInfo) -> None:
    import ray

    half = replace(info.nodes[0], cpus=1)
    halves = replace(info, own=False, nodes=(half, replace(half, node_id="another")))
    occupant = ray.remote(num_cpus=1)(_Occupant).remote()
    ray.get(occupant.here.remote(), timeout=60)
    with _Followed(halves, "late", replicas=2) as followed:  # a processor each; another has one of the two
        followed.until(lambda: bool(followed.starts))
        time.sleep(1.0)
        followed.step()
        assert len(followed.starts) == 1
        ray.kill(occupant)
        followed.until(lambda: len(followed.starts) == 2)


@pytest.mark.heavy
def test_the_session_of_a_shard_task_that_was_killed_ends(info: ClusterInfo) -> None:
    import ray

    spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)
    actor = actor_class().options(num_cpus=0).remote("killed", spec, silence=1.0)
    ray.get(actor.ready.remote(), timeout=60)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(ray.remote(num_cpus=1, max_retries=0)(_dies_amid).remote(actor), timeout=60)
    deadline = time.monotonic() + 15
    while ray.get(actor.status.remote(), timeout=10).sessions:
        assert time.monotonic() < deadline, "the replica waits for a dead shard task"
        time.sleep(0.1)
    ray.kill(actor)


def _dies_amid(actor: Any) -> None:
    replica = RayReplica("killed", actor)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    row = encode(Request(index=0, custom_id="a", url=Kind.CHAT.url, body=body))
    replica.feed("job/0/1", [row])  # and more would follow
    for _ in replica.results("job/0/1", 1):
        os.kill(os.getpid(), signal.SIGKILL)


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
