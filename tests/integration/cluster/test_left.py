"""What a local cluster leaves in the process of its job, which may run another one after it."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path

import psutil
import pytest

from dray.cluster.base import ClusterSettings
from dray.cluster.connect import RayCluster
from dray.cluster.providers.local import LocalProvider

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SETTINGS = ClusterSettings(num_cpus=1)


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness", "RAY_AUTH_MODE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


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
