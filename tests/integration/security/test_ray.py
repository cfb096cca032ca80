"""ShadowRay: whoever reaches Ray's API runs code. A real head, asked by somebody without its token."""

from __future__ import annotations

import http.client
import os
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # comes with Ray
import psutil
import pytest

from dray.cluster import ClusterSettings, open_cluster
from dray.cluster.auth import answers_anybody
from dray.cluster.head import Head

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

OPEN_HEAD = """
import sys, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
print("at", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
JOIN = """
import sys
import time
from dray.cluster import ClusterSettings, open_cluster
from dray.errors import ConfigError
cluster = open_cluster(ClusterSettings(address=sys.argv[1], auth_token="a" * 64))
cluster.start()
try:
    cluster.wait()
except ConfigError as error:
    print("refused:", error)
finally:
    cluster.release()
import ray
print("connected:", ray.is_initialized())
"""
CALLS = (
    "NodeInfoGcsService/CheckAlive",
    "NodeInfoGcsService/GetAllNodeInfo",
    "ActorInfoGcsService/GetAllActorInfo",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull",
    "ObjectManagerService/Push",
    "CoreWorkerService/Exit",
    "ReporterService/GetTraceback",
)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home without a token yet; its path is short, for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A local cluster's head as dray starts it, by its address; this process has not joined it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(home))
        patch.setenv("TMPDIR", str(home))
        patch.setattr(tempfile, "tempdir", None)
        cluster = open_cluster(ClusterSettings(num_cpus=1))
        cluster.launch()  # type: ignore[attr-defined]  # of our own: starts its processes, and does not join
        started: Head = cluster.provider._head  # type: ignore[attr-defined]
        try:
            yield started.wait(), psutil.Process(started._process.pid)
        finally:
            cluster.release()
    tempfile.tempdir = None


@pytest.mark.parametrize("call", CALLS[:3])
def test_shadowray_the_head_answers_nobody_without_its_token(
    call: str, head: tuple[str, psutil.Process]
) -> None:
    with grpc.insecure_channel(head[0]) as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=10)
    assert refusal.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not answers_anybody(head[0])


def test_shadowray_no_port_of_the_node_takes_orders(head: tuple[str, psutil.Process]) -> None:
    """All ports of all of Ray's processes: gRPC and HTTP want the token, and one serves figures alone."""
    said: dict[tuple[str, int], str] = {}
    for process in [head[1], *head[1].children(recursive=True)]:
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                place = connection.laddr
                host = "127.0.0.1" if place.ip in ("::", "0.0.0.0") else place.ip
                said[process.name(), place.port] = _ask_until_it_answers(host, place.port)
    assert set(said.values()) <= {"guarded", "figures"}, said
    assert {name for (name, _), answer in said.items() if answer == "guarded"} >= {"gcs_server", "raylet"}


def _ask_until_it_answers(host: str, port: int) -> str:
    """The first connection makes dray's stand-in become Ray's agent, which takes seconds to listen."""
    end = time.monotonic() + 60
    while True:
        try:
            return _ask(host, port)
        except (ConnectionError, urllib.error.URLError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _ask(host: str, port: int) -> str:
    """What a port says to somebody without a token."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/get_or_create_runtime_env", timeout=10) as answer:
            return "figures" if answer.read(7) == b"# HELP " else "open"
    except urllib.error.HTTPError as refusal:
        return "guarded" if refusal.code in (401, 403) else f"HTTP {refusal.code}"
    except http.client.BadStatusLine:
        return _ask_grpc(host, port)


def _ask_grpc(host: str, port: int) -> str:
    codes = set()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=10)
            except grpc.RpcError as refusal:
                codes.add(refusal.code())
            else:
                return f"open: {call}"
    codes.discard(grpc.StatusCode.UNIMPLEMENTED)  # of another of Ray's services
    return "guarded" if codes == {grpc.StatusCode.UNAUTHENTICATED} else str(codes)


def test_secrets_in_ray_the_token_is_its_owners(head: tuple[str, psutil.Process], home: Path) -> None:
    token = home / ".ray/auth_token"
    assert len(token.read_text()) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    token.chmod(0o644)  # as Ray makes it
    from dray.cluster.auth import close_token_file

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        close_token_file()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_prompts_in_logs_the_session_is_closed_to_others(
    head: tuple[str, psutil.Process], home: Path
) -> None:
    """Ray opens the folder of its sockets and logs to every user: the one around it is closed."""
    [folder] = home.glob("dray-ray-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    [session] = [path for path in folder.glob("*/session_*") if not path.is_symlink()]
    assert (session / "sockets").is_dir()
    assert (session / "logs").is_dir()


@contextmanager
def _open_head(home: Path) -> Iterator[str]:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN_HEAD, str(home / "o")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        found = next(line for line in process.stdout if line.startswith("at "))
        yield found.split()[1]
    finally:
        process.stdin.close()
        process.wait(60)


@pytest.mark.heavy
def test_shadowray_an_open_cluster_is_left_although_we_have_a_token(home: Path) -> None:
    """Our own setting proves nothing about the other side: the cluster itself is asked."""
    with _open_head(home) as address:
        if address.startswith("127."):
            pytest.skip("this machine has no address but loopback")
        assert answers_anybody(address)
        done = subprocess.run(
            [sys.executable, "-c", JOIN, address], capture_output=True, text=True, timeout=120
        )
    assert f"refused: the Ray cluster at {address} is open" in done.stdout, done.stdout + done.stderr
    assert "connected: False" in done.stdout
