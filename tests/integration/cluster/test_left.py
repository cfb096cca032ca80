"""What a local cluster leaves in the process of its job, which may run another one after it."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dray.cluster.auth import refuse_missing_token
from dray.cluster.base import ClusterSettings
from dray.cluster.connect import RayCluster
from dray.cluster.providers.local import LocalProvider
from dray.cluster.ray_private import nodes_at
from dray.errors import ConfigError
from tests.support.raylets import Raylets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SETTINGS = ClusterSettings(num_cpus=1)
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
ELSEWHERE = "192.0.2.7:6379"


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*AUTH, "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    found = Raylets(tmp_path_factory.mktemp("raylets"), 1)
    yield found
    found.stop()


def _head(cluster: RayCluster) -> int:
    assert isinstance(cluster.provider, LocalProvider)
    assert cluster.provider._head is not None
    return cluster.provider._head._process.pid


def _left_by_a_job() -> tuple[int, weakref.ref[RayCluster]]:
    """The head process and the cluster of a job that left it, as flows do: nothing is released by name."""
    cluster = RayCluster(SETTINGS)
    cluster.launch()
    head = _head(cluster)
    cluster.leave()
    cluster.leave()  # as the driver and the flow do
    return head, weakref.ref(cluster)


def test_a_cluster_that_was_left_keeps_nothing_in_its_process() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    head, cluster = _left_by_a_job()
    deadline = time.monotonic() + 90
    while psutil.pid_exists(head) or cluster() is not None:
        assert time.monotonic() < deadline, (psutil.pid_exists(head), cluster())
        gc.collect()
        time.sleep(0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_release_waits_for_what_was_left() -> None:
    cluster = RayCluster(SETTINGS)
    cluster.launch()
    head = _head(cluster)
    cluster.leave()
    cluster.release()
    assert not psutil.pid_exists(head)


@pytest.mark.heavy
def test_a_token_of_a_cluster_that_was_left_is_for_no_other(
    raylets: Raylets, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(raylets.settings.address)
    for before in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        for name, value in before.items():
            monkeypatch.setenv(name, value)
        cluster = RayCluster(raylets.settings)
        cluster.wait()
        assert os.environ["RAY_AUTH_TOKEN"] == raylets.settings.auth_token
        assert nodes_at(address)
        cluster.leave()
        assert {name: os.environ[name] for name in AUTH if name in os.environ} == before
        with pytest.raises(Exception, match=r"(?i)auth"):  # a class of Ray's own: it has no token, or another
            nodes_at(address)
        if not before:
            with pytest.raises(ConfigError, match="has no token"):
                refuse_missing_token(ELSEWHERE)
        cluster.leave()


@pytest.mark.heavy
def test_a_second_leave_takes_nothing_of_the_next_cluster(raylets: Raylets) -> None:
    first, second = RayCluster(SETTINGS), RayCluster(raylets.settings)
    first.wait()
    first.leave()
    second.wait()
    first.release()
    assert os.environ["RAY_AUTH_TOKEN"] == raylets.settings.auth_token
    assert nodes_at(str(raylets.settings.address))
    second.leave()
    assert not set(AUTH) & os.environ.keys()
    third = RayCluster(SETTINGS)
    third.wait()
    third.release()
    assert not set(AUTH) & os.environ.keys()
