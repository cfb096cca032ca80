"""A cluster of KubeRay's at the test's own API server, as its settings and its provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.api import KubeApi
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from tests.support.kube_server import KubeServer

CLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"
"""Where the server has the clusters."""


def settings(server: KubeServer, folder: Path, **changes: Any) -> KubeRayCluster:
    values = {
        "name": "test",
        "image": "dray:1",
        "kubeconfig": server.kubeconfig(folder),
        "workers": 2,
        "minimum": 1,
    }
    return KubeRayCluster(**{**values, **changes})


def provider(server: KubeServer, folder: Path, *, of_job: bool = False, **changes: Any) -> KubeRayProvider:
    def make(given: Any) -> KubeApi:
        api = KubeApi.of(given)
        api._patience = 3.0
        return api

    return KubeRayProvider(settings(server, folder, **changes), make, of_job=of_job)


def groups(server: KubeServer, name: str = "test") -> dict[str, int]:
    spec = server.ask("GET", f"{CLUSTERS}/{name}")["spec"]
    return {one["groupName"]: one["replicas"] for one in spec["workerGroupSpecs"]}
