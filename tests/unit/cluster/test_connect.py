"""Which clusters a job may join."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.utils import check_version_info, compute_version_info

from blocks import ExistingRayCluster
from dray.cluster import connect, ray_nodes
from dray.cluster.auth import refuse_missing_token
from dray.cluster.base import ClusterInfo, ClusterSettings, Node
from dray.cluster.own_node import OwnNode, lock_of
from dray.cluster.providers.protocol import Access, Machine, Market, Phase
from dray.cluster.providers.standing import StandingProvider
from dray.cluster.ray_private import let_main_thread_alone_start_ray
from dray.errors import CancelledError, ClusterError, ConfigError
from dray.job.options.resolving import NoBlocks, cluster_settings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("address", ["10.0.0.5:6379", "192.0.2.7:10001", "[2001:db8::1]:6379"])
def test_a_cluster_beyond_loopback_is_not_joined_without_a_token(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of the cluster itself, which may well want a token."""
    told = (
        rf"this process has no token for the Ray cluster at {re.escape(address)}.*set RAY_AUTH_MODE=token and"
    )
    with pytest.raises(ConfigError, match=told):
        refuse_missing_token(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    refuse_missing_token(address)


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:10001", "[::1]:6379", "auto"])
def test_loopback_may_be_open(address: str) -> None:
    refuse_missing_token(address)


def test_a_name_that_nobody_knows_counts_as_elsewhere() -> None:
    with pytest.raises(ConfigError, match="has no token"):
        refuse_missing_token("no-such-host.invalid:6379")


def test_an_address_for_clients_of_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is a client joins, and fails minutes later: it has nothing of Ray's own state."""
    address, told = (
        "ray://10.0.0.5:10001",
        r"not a client: give HOST:6379.*`dray cluster submit http://HOST:8265",
    )
    for given in (address, "http://10.0.0.5:8265"):
        with pytest.raises(ConfigError, match=f"cluster {given}: .*{told}"):
            cluster_settings(given, NoBlocks())
        with pytest.raises(ConfigError, match=told):
            ExistingRayCluster(address=given).settings()
    with pytest.raises(ConfigError, match=r"^cluster ray://10\.0\.0\.5:10001: "):
        ClusterSettings(address="ray://me:secret@10.0.0.5:10001")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    ClusterSettings(address="auto")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=rf"cluster {address} \(auto, by RAY_ADDRESS\): .*{told}"):
        ClusterSettings(address="auto")
    ClusterSettings(address="10.0.0.5:6379")  # Ray goes by it
    ClusterSettings()


def test_the_refusal_comes_before_ray_is_asked() -> None:
    cluster = connect.RayCluster(ClusterSettings(address="192.0.2.7:6379"))
    cluster.start()
    with pytest.raises(ConfigError, match="has no token"):
        cluster.wait()
    cluster.release()
    cluster.release()  # always safe


def test_other_versions_of_ray_and_python_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own text has the versions on lines of their own."""
    with pytest.raises(RuntimeError) as mismatch:
        check_version_info({"ray_version": "9.9.0", "python_version": "3.9.9"}, "node 10.0.0.5:6379")
    ray_here, python_here = compute_version_info()
    told = (
        "both need the same versions; "
        f"cluster: Ray 9.9.0, Python 3.9.9; here: Ray {ray_here}, Python {python_here}"
    )

    def mismatched(*_: object) -> ClusterInfo:
        raise mismatch.value

    monkeypatch.setattr(connect, "_connect", mismatched)
    with pytest.raises(ClusterError) as failed:
        connect.RayCluster(ClusterSettings(address="127.0.0.1:6379")).wait()
    assert str(failed.value) == f"could not join the Ray cluster at 127.0.0.1:6379: {told}"

    node = OwnNode("10.0.0.5:6379")  # of a rented cluster: `ray start` ends with the same text
    node._log.write(f"Traceback ...\nRuntimeError: {mismatch.value}\n".encode())
    assert node._last_words() == told
    node.stop()
    lock_of("10.0.0.5:6379").unlink()


def test_a_cluster_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray's own call hangs: neither the wait for it nor the leaving has no end, and a cancel is heard."""
    hung = threading.Event()
    monkeypatch.setattr(connect, "_connect", lambda *_: hung.wait(60))
    monkeypatch.setattr(connect, "end_without_teardown", lambda: None)
    for limit in ("JOIN_SECONDS", "LEAVE_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(connect, limit, 0.1)
    monkeypatch.setattr(connect, "_SAY_SECONDS", 0.0)
    cluster = connect.RayCluster(ClusterSettings(address="127.0.0.1:6379"))
    cluster.start()
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:6379: not joined within .*is its head up"):
        cluster.wait()
    assert [one for one in caplog.messages if "dray tries for" in one] == caplog.messages[:1]

    def cancelled() -> None:
        raise CancelledError("the job was cancelled")

    with pytest.raises(CancelledError):
        cluster.wait(cancelled)
    cluster.leave()
    hung.set()


def test_a_cluster_that_was_left_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread comes late to it: the flow has left already."""
    cluster = connect.RayCluster(ClusterSettings(address="127.0.0.1:6379"))
    monkeypatch.setattr(cluster.provider, "start", lambda: pytest.fail("it was started"))
    cluster.leave()
    with pytest.raises(ClusterError, match="left before it was joined"):
        cluster.launch()


@pytest.mark.parametrize(("largest", "expected"), [(8.0, 8.0), (None, 4.0)])
def test_the_largest_machine_is_what_the_provider_may_rent_or_what_is_there(
    largest: float | None, expected: float
) -> None:
    """The machine that joins first may be a smaller one. A standing cluster's provider says what it has."""
    spot: dict[str, Any] = {"kind": "k", "market": Market.SPOT, "phase": Phase.COMING}
    machines = (
        Machine(name="head", gpus=16, **{**spot, "head": True}),
        *(Machine(name=str(gpus), gpus=gpus, **spot) for gpus in (1, 4, None)),
    )
    provider = SimpleNamespace(largest=largest, nodes=lambda: machines, own=False)
    settings: Any = SimpleNamespace(open=lambda run="": provider)
    assert connect.RayCluster(ClusterSettings(provider=settings))._largest() == expected
    assert connect.RayCluster(ClusterSettings(address="127.0.0.1:6379"))._largest() == 0.0


def _rented(name: str, gpus: float | None = 1, **values: Any) -> Machine:
    given = {"kind": "k", "market": Market.SPOT, "phase": Phase.UP, "address": f"10.0.0.{name}", **values}
    return Machine(name=name, gpus=gpus, **given)


class Ahead:
    """A provider of pods: four are asked for, and nodes have two of them."""

    where = "the RayCluster"

    def nodes(self) -> tuple[Machine, ...]:
        return _rented("1", head=True), _rented("2"), _rented("3")

    def asked(self) -> list[float]:
        return [1, 1, 1, 1]


def test_machines_that_are_rented_and_not_in_ray_are_known() -> None:
    """Also those that boot, whose address nothing says yet; not the head, nor one that leaves."""
    nodes = [
        Node(node_id=one, host=one, cpus=1, gpus=1, stable=False, address=f"10.0.0.{one}")
        for one in ("1", "2", "8")
    ]
    provider: Any = SimpleNamespace(
        nodes=lambda: (
            _rented("1", head=True), _rented("2"), _rented("3", 4), _rented("4", None),
            _rented("5", 8, phase=Phase.COMING, address=""), _rented("6", phase=Phase.LEAVING),
        )
    )  # fmt: skip
    assert ray_nodes.unjoined(provider, nodes) == (4, None, 8)
    ahead: Any = Ahead()
    assert ray_nodes.unjoined(ahead, nodes) == (1, 1, 1)
    assert ray_nodes.unjoined(StandingProvider(_made(ahead)), nodes) == (1, 1, 1)
    assert ray_nodes.unjoined(StandingProvider(_made(provider)), nodes) == (4, None, 8)


def test_too_few_workers_are_told_with_what_became_of_the_others() -> None:
    ends = {"i-2": "Client.InternalError: Client error on launch", "i-3": ""}
    provider: Any = SimpleNamespace(
        where="EC2",
        nodes=lambda: (_rented("i-1", why="ErrImagePull: no image"),),
        ended=lambda: ends,
    )
    access = Access(address="a:1", minimum=3, patience=900)
    assert ray_nodes._too_few(provider, access, 0) == (
        "EC2: 0 of at least 3 workers joined Ray in 900 s (machines that are there or coming: i-1 "
        "(ErrImagePull: no image); ended: i-2 (Client.InternalError: Client error on launch), i-3); their "
        "consoles say why, or ask for fewer workers"
    )

    def away() -> dict[str, str]:
        raise ClusterError("the service is away")

    provider.ended = away
    assert "no image)); their consoles" in ray_nodes._too_few(provider, access, 0)


@pytest.mark.parametrize("standing", [False, True])
def test_a_job_joins_with_what_is_still_to_join(standing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a cluster that `dray cluster up` has just made."""
    provider = _made(Ahead())
    values = {"own": False, "largest": 1, "start": lambda: None, "leave": lambda: None}
    values |= {"keep": lambda at_once=False: None, "access": lambda look: Access(address="10.0.0.1:6379")}
    for name, value in values.items():
        setattr(provider, name, value)
    joined = _info({**_node("a", CPU=4, GPU=1), "NodeManagerAddress": "10.0.0.2"})
    monkeypatch.setattr(connect, "_connect", lambda *_: joined)
    for name in (
        "enable_token_auth",
        "join_as_node",
        "answers_strangers",
        "node_types",
        "prepare_environment",
    ):
        monkeypatch.setattr(connect, name, lambda *_: None)
    monkeypatch.setattr(connect, "leaving", lambda: ())
    settings: Any = SimpleNamespace(open=lambda run="": provider)
    info = connect.RayCluster(ClusterSettings(provider=settings, standing=standing))._joined()
    assert (info.unjoined, info.machines) == ((1, 1, 1), 4)


def _made(provider: Any) -> Any:
    """With what a standing cluster reads of its provider."""
    provider.where, provider.join_seconds = "the cluster", 1.0
    return provider


def test_a_provider_that_lists_no_machines_keeps_no_job_out(caplog: pytest.LogCaptureFixture) -> None:
    def away() -> tuple[Machine, ...]:
        raise ClusterError("the service is away")

    provider = SimpleNamespace(nodes=away, own=False, where="the cluster")
    settings: Any = SimpleNamespace(open=lambda run="": provider)
    assert connect.RayCluster(ClusterSettings(provider=settings))._unjoined(()) == ()
    assert caplog.messages == [
        "the cluster: its machines cannot be listed, and a job without --replicas counts on those alone that "
        "have joined: the service is away"
    ]
    assert connect.RayCluster(ClusterSettings(address="127.0.0.1:6379"))._unjoined(()) == ()


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(ClusterSettings(address="a:1", auth_token="secret"))


def _node(host: str, **resources: float) -> dict[str, object]:
    return {"Alive": True, "NodeID": host, "NodeManagerHostname": host, "Resources": resources}


def _info(*nodes: dict[str, object]) -> ClusterInfo:
    found, resource = ray_nodes._nodes(list(nodes))
    return ClusterInfo(address="a", nodes=found, seconds=0.0, stable_resource=resource)


def test_stable_nodes_are_those_that_are_marked() -> None:
    info = _info(_node("head", CPU=1), _node("a", CPU=4, dray_stable=100), _node("spot", GPU=8.0))
    assert info.stable_hosts == {"a"}
    assert info.stable_resource == "dray_stable"
    assert [node.gpus for node in info.nodes] == [0.0, 0.0, 8.0]


def test_the_head_is_taken_where_nobody_is_marked() -> None:
    info = _info(_node("head", **{"CPU": 1, "node:__internal_head__": 1}), _node("worker", CPU=4))
    assert info.stable_hosts == {"head"}
    assert info.stable_resource == "node:__internal_head__"


def test_dead_nodes_do_not_count() -> None:
    dead = {**_node("dead", dray_stable=1), "Alive": False}
    assert _info(_node("head", **{"node:__internal_head__": 1}), dead).stable_hosts == {"head"}


def test_a_head_that_does_not_say_what_it_drains_keeps_no_job_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = _info(_node("a", CPU=1), _node("b", CPU=1)).nodes
    monkeypatch.setattr(ray_nodes, "draining", lambda: {"b": 5.0})
    assert [one.draining for one in ray_nodes.marked(nodes, ray_nodes.leaving())] == [False, True]

    def away() -> dict[str, float]:
        raise RuntimeError("Failed to get draining nodes")

    monkeypatch.setattr(ray_nodes, "draining", away)
    assert [one.draining for one in ray_nodes.marked(nodes, ray_nodes.leaving())] == [False, False]


def test_hosts_with_several_stable_nodes_count_once() -> None:
    nodes = tuple(Node(node_id=str(n), host="one", cpus=1, gpus=0, stable=True) for n in range(2))
    assert ClusterInfo(address="a", nodes=nodes, seconds=0, stable_resource="r").stable_hosts == {"one"}


def test_ray_starts_no_cluster_for_a_thread_that_outlasts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray._private import auto_init_hook

    started = []
    monkeypatch.setattr(ray, "init", lambda: started.append(threading.current_thread().name))
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    let_main_thread_alone_start_ray()
    with ThreadPoolExecutor() as late, pytest.raises(Exception, match="Ray has not been started"):
        late.submit(ray.put, 1).result()
    assert started == []
    with pytest.raises(Exception, match="Ray has not been started"):  # as nothing starts it here
        ray.put(1)
    assert started == ["MainThread"]
