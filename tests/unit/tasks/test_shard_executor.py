"""Shards are Prefect's tasks, but not on machines that cannot reach Prefect's server."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dray.cluster import ClusterInfo, Node
from dray.driver.ray_executor import RayExecutor
from tasks import shard_executor
from tasks.prefect_executor import PrefectExecutor
from tasks.shard_executor import executor_for

pytestmark = pytest.mark.unit

HERE = socket.gethostname()
LOOPBACK = "http://127.0.0.1:4200/api"


def cluster(*hosts: str) -> ClusterInfo:
    """Shard tasks run on these hosts; the driver's machine is a node in any case."""
    stable = [Node(node_id=host, host=host, cpus=2.0, gpus=0.0, stable=True) for host in hosts]
    driver = Node(node_id="driver", host=HERE, cpus=0.0, gpus=0.0, stable=False)
    return ClusterInfo(address="a", nodes=(*stable, driver), seconds=0.0, stable_resource="dray_stable")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The client of a run, whose ``api_url`` a test sets."""
    client = SimpleNamespace(api_url=LOOPBACK)

    @contextlib.contextmanager
    def get_client(**_: bool) -> Iterator[SimpleNamespace]:
        yield client

    monkeypatch.setattr(shard_executor, "get_client", get_client)
    monkeypatch.setattr(shard_executor, "get_run_logger", lambda: logging.getLogger("test"))
    return client


@pytest.mark.parametrize(
    "url", [LOOPBACK, "http://localhost:4200/api", "http://[::1]:1/api", "http://0.0.0.0:1/api"]
)
def test_shards_on_other_machines_than_the_server_s_are_plain_ray_tasks(
    server: SimpleNamespace, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    """None of their states and log lines came to Prefect, and each attempt ended seconds late."""
    server.api_url = url
    with caplog.at_level(logging.INFO):
        assert isinstance(executor_for(cluster("node-1", "node-2")), RayExecutor)
    assert f"{url}, which other machines (node-1, node-2) do not reach" in caplog.text
    assert "set PREFECT_API_URL" in caplog.text


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        (LOOPBACK, [HERE]),
        ("http://10.0.0.5:4200/api", [HERE]),
        ("http://10.0.0.5:4200/api", ["node-1"]),
        ("https://api.prefect.cloud/api/accounts/a/workspaces/w", ["node-1", HERE]),
    ],
)
def test_all_others_are_tasks_of_prefect(
    server: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    hosts: list[str],
) -> None:
    monkeypatch.setattr(
        shard_executor, "is_loopback", lambda host: host == "127.0.0.1"
    )  # no look-up of names
    server.api_url = url
    with caplog.at_level(logging.INFO):
        assert isinstance(executor_for(cluster(*hosts)), PrefectExecutor)
    assert caplog.text == ""


def test_a_cluster_whose_shards_run_here_and_elsewhere_is_told_what_its_page_lacks(
    server: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(executor_for(cluster(HERE, "node-1")), PrefectExecutor)
    assert "(node-1) do not reach: this run's page does not show shard tasks there" in caplog.text
