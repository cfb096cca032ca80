"""Times of an API server whose clock is not the driver's: all are compared with its own."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.api import Answer, KubeApi
from dray.cluster.providers.kuberay.expiry import Watchdog
from dray.cluster.providers.kuberay.objects import EXPIRES, ray_cluster
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from dray.notices.asking import Answer as Said

pytestmark = pytest.mark.unit

SETTINGS = KubeRayCluster(name="test", image="i", workers=1, minimum=0, spot_seconds=120)


class Server:
    """An API server whose clock is ``ahead``, with a pod that has waited for spot for so many seconds."""

    def __init__(self, ahead: float, waited: float = 5.0) -> None:
        self.ahead = ahead
        self.waited = waited
        self.cluster = ray_cluster(SETTINGS, {"spot": 1, "on-demand": 0}, self.now + 60)
        self.cluster["metadata"].update(resourceVersion="1", uid="u")
        self.calls: list[str] = []

    @property
    def now(self) -> float:
        return time.time() + self.ahead

    @property
    def sizes(self) -> dict[str, int]:
        return {one["groupName"]: one["replicas"] for one in self.cluster["spec"]["workerGroupSpecs"]}

    @property
    def left(self) -> float:
        """Seconds until the cluster expires."""
        return float(self.cluster["metadata"]["annotations"][EXPIRES]) - self.now

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        self.calls.append(method)
        found: Any = self.cluster
        if method == "PATCH":
            self.cluster["spec"] |= body.get("spec", {})
            self.cluster["metadata"]["annotations"] |= body["metadata"].get("annotations", {})
        elif "/pods" in path:
            found = {"items": [self._pod()]}
        elif "labelSelector" in path:
            found = {"items": [self.cluster]}
        date = {"date": formatdate(self.now, usegmt=True)}
        return Answer(status=200, headers=date, body=copy.deepcopy(found))

    def _pod(self) -> dict[str, Any]:
        since = datetime.fromtimestamp(self.now - self.waited, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        late = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since
        }  # fmt: skip
        labels = {"ray.io/cluster": "test", "ray.io/node-type": "worker", "ray.io/group": "spot"}
        return {
            "metadata": {"name": "w", "labels": labels},
            "status": {"phase": "Pending", "conditions": [late]},
        }

    def provider(self) -> KubeRayProvider:
        return KubeRayProvider(SETTINGS, lambda _: KubeApi("default", self.send, "the API"))


@pytest.mark.parametrize("ahead", [-130.0, 0.0, 130.0])
@pytest.mark.parametrize(("waited", "groups"), [(5.0, (1, 0)), (125.0, (0, 1))])
def test_a_pod_waits_for_spot_by_the_servers_clock(
    ahead: float, waited: float, groups: tuple[int, int]
) -> None:
    server = Server(ahead, waited)
    server.provider().desire(1)
    assert (server.sizes["spot"], server.sizes["on-demand"]) == groups


@pytest.mark.parametrize("ahead", [-1000.0, 0.0, 1000.0])
def test_the_end_of_a_cluster_is_by_the_servers_clock(ahead: float) -> None:
    """The head pod's container, and a sweep from another machine, read it by that."""
    server = Server(ahead)
    one = server.provider()
    assert one.sweep() == ()
    one.keep(at_once=True)
    assert server.left == pytest.approx(SETTINGS.lifetime, abs=3.0)
    server.cluster["metadata"]["annotations"][EXPIRES] = str(int(server.now) - 5)
    assert [swept.name for swept in one.sweep()] == ["test"]


def test_a_machine_ends_at_a_time_of_this_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dray cluster status` says in how many minutes that is."""
    server = Server(1000.0)
    monkeypatch.setattr(server, "_pod", lambda: {"metadata": {"name": "w"}, "status": {"phase": "Running"}})
    [machine] = server.provider().nodes()
    assert machine.expires is not None
    assert machine.expires - time.time() == pytest.approx(60.0, abs=3.0)


def test_a_plan_needs_no_server() -> None:
    def refused(_: object) -> KubeApi:
        raise AssertionError

    [planned] = KubeRayProvider(SETTINGS, refused).plan()
    assert planned.name == "test"


@pytest.mark.parametrize("ahead", [-1000.0, 1000.0])
def test_the_heads_container_looks_at_the_servers_clock(
    ahead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "namespace").write_text("default")
    (tmp_path / "token").write_text("t")
    server = Server(ahead)

    def ask(*_: object, method: str, **more: object) -> Said:
        found = server.send(method, "", {}, {})
        return Said(status=200, headers=found.headers, body=json.dumps(found.body).encode())

    monkeypatch.setattr("dray.cluster.providers.kuberay.expiry.ask", ask)
    watchdog = Watchdog("http://127.0.0.1:1", "test", tmp_path)
    assert not watchdog.look()
    server.cluster["metadata"]["annotations"][EXPIRES] = str(int(server.now) - 5)
    assert watchdog.look()
    assert server.calls == ["GET", "GET", "DELETE"]
