"""A job on a RayCluster that `dray cluster up` made: its size stays, its market may change."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from typing import Any

import pytest

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.api import Answer, KubeApi
from dray.cluster.providers.kuberay.objects import ray_cluster
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from dray.cluster.providers.standing import StandingProvider

pytestmark = pytest.mark.unit

FILE = KubeRayCluster(name="test", image="i", workers=4, minimum=1, spot_seconds=1)


class Server:
    """The API server, with a cluster that was made with ``spot`` workers, none of which a node takes."""

    def __init__(self, spot: int) -> None:
        self.cluster = ray_cluster(FILE, {"spot": spot, "on-demand": 0}, 1e10)
        self.cluster["metadata"]["resourceVersion"] = "1"
        self.head_is_ready = False

    @property
    def sizes(self) -> dict[str, int]:
        return {one["groupName"]: one["replicas"] for one in self.cluster["spec"]["workerGroupSpecs"]}

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        found: Any = self.cluster
        if method == "PATCH":
            self.cluster["spec"] |= body.get("spec", {})
        elif "/pods" in path:
            found = {"items": [self._head(), *self._workers()]}
        elif "/secrets/" in path:
            found = {"data": {"auth_token": base64.b64encode(b"token").decode()}}
        return Answer(status=200, headers={}, body=copy.deepcopy(found))

    def _head(self) -> dict[str, Any]:
        ready = [{"type": "Ready", "status": str(self.head_is_ready)}]
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready}
        return _pod("test-head", "head", "headgroup", status)

    def _workers(self) -> list[dict[str, Any]]:
        late = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        waits = {"phase": "Pending", "conditions": [late]}
        runs = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        groups = ((group, number) for group, size in self.sizes.items() for number in range(size))
        return [
            _pod(f"{group}-{number}", "worker", group, waits if group == "spot" else runs)
            for group, number in groups
        ]

    def standing(self) -> StandingProvider:
        """As a job with the file's settings opens it."""
        return StandingProvider(KubeRayProvider(FILE, lambda _: KubeApi("default", self.send, "the API")))


def _pod(name: str, kind: str, group: str, status: dict[str, Any]) -> dict[str, Any]:
    labels = {"ray.io/cluster": "test", "ray.io/node-type": kind, "ray.io/group": group}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def test_pods_that_wait_for_a_node_are_asked_for_and_no_machines() -> None:
    """A job that joins just after `up` is meant for them as well."""
    made = Server(spot=3).standing()
    assert [one.name for one in made.nodes()] == ["test-head"]
    assert list(made.asked()) == [1, 1, 1]


def test_a_job_keeps_the_size_that_up_gave_the_cluster() -> None:
    """The file says 4 workers, and `dray cluster up --workers 8` was the last word."""
    server = Server(spot=8)
    seen: list[int] = []

    def look() -> None:
        seen.append(sum(server.sizes.values()))
        server.head_is_ready = server.sizes["on-demand"] > 0

    access = server.standing().access(look)
    assert access.address == "10.0.0.1:6379"
    assert set(seen) == {8}
    assert server.sizes == {"spot": 0, "on-demand": 8}  # none came on spot in time


def test_a_job_has_pods_that_wait_for_spot_replaced_once_it_runs() -> None:
    server = Server(spot=3)
    server.standing().keep()
    assert server.sizes == {"spot": 0, "on-demand": 3}
