"""The objects that make a cluster, as Kubernetes takes them: pure data, for a person or for the API.

There is one: the ``RayCluster``. KubeRay makes pods, a service and the token's secret from it, and Kubernetes
deletes them with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from dray.cluster.head_jobs import JOBS_PORT
from dray.cluster.providers.kuberay.settings import KubeRaySettings
from dray.cluster.providers.protocol import Market

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayclusters"
MANAGED_BY = "app.kubernetes.io/managed-by"
EXPIRES = "dray.io/expires"
"""The annotation that says when a cluster may be deleted: seconds since 1970."""
MAKER = "dray.io/maker"
"""The annotation that names the process that made a cluster: the answer to that may be lost."""
ELASTIC = "kueue.x-k8s.io/elastic-job"
"""The annotation that lets Kueue take a change of size: else it suspends the cluster at the first one."""

_MOST_WORKERS = 1000
_KEPT = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Of the head: an autoscaler that moves its node would end the job."""
_MEMORY = [{"name": "memory", "mountPath": "/dev/shm"}]  # noqa: S108  a volume of the pod's own


def ray_cluster(settings: KubeRaySettings, sizes: Mapping[str, int], expires: float) -> dict[str, Any]:
    """The ``RayCluster``, with so many workers in each group; it may be deleted when it ``expires``.

    There is a group for each market, of the same name.
    """
    labels, annotations = {MANAGED_BY: "dray"}, {EXPIRES: str(int(expires))}
    if settings.queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = settings.queue
        annotations[ELASTIC] = "true"
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RayCluster",
        "metadata": {
            "name": settings.name,
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "rayVersion": version("ray"),
            "enableInTreeAutoscaling": False,
            "authOptions": {"mode": "token"},
            "headGroupSpec": _head(settings),
            "workerGroupSpecs": [
                _workers(settings, market, sizes.get(market, 0))
                for market in (Market.SPOT, Market.ON_DEMAND)
                if market in settings.markets
            ],
        },
    }


def unchanged(seen: Mapping[str, Any]) -> dict[str, str]:
    """Preconditions of a deletion: that the object is still as it was ``seen``."""
    return {name: seen["metadata"][name] for name in ("uid", "resourceVersion")}


def _head(settings: KubeRaySettings) -> dict[str, Any]:
    """Shard tasks run here, and no engine: without processors, Ray puts no replica on it."""
    ray = _container(settings, "ray-head", settings.head_cpus, settings.head_memory)
    ports = {"gcs-server": settings.port, "dashboard": JOBS_PORT}
    ray["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    template = _pod(settings, settings.on_demand_selector, [ray, _expiry(settings)])
    template["metadata"]["annotations"] = dict(_KEPT)
    return {
        "rayStartParams": {
            "num-cpus": "0",
            "num-gpus": "0",
            "resources": '"{\\"dray_stable\\": 1}"',  # in quotes twice: KubeRay puts it into a shell's line
            "dashboard-host": "0.0.0.0",  # noqa: S104  of the pod: the token is asked for, and a service leads there
            "port": str(settings.port),
        },
        "template": template,
    }


def _workers(settings: KubeRaySettings, market: Market, replicas: int) -> dict[str, Any]:
    ray = _container(settings, "ray-worker", settings.cpus, settings.memory, settings.gpus)
    ray["volumeMounts"] = _MEMORY
    selector = settings.spot_selector if market is Market.SPOT else settings.on_demand_selector
    labels = {"ray.io/market-type": market.value}
    if settings.instance_type is not None:
        labels["dray/instance-type"] = settings.instance_type
    volume = {"medium": "Memory", "sizeLimit": settings.shared_memory}
    template = _pod(settings, selector, [ray])
    template["spec"]["volumes"] = [{"name": "memory", "emptyDir": volume}]
    return {
        "groupName": market.value,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": _MOST_WORKERS,
        "labels": labels,
        "rayStartParams": {},
        "template": template,
    }


def _pod(
    settings: KubeRaySettings, selector: Mapping[str, str], containers: list[dict[str, Any]]
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "serviceAccountName": settings.service_account,
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "nodeSelector": dict(selector),
        "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerations],
        "containers": containers,
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return {"metadata": {"labels": {MANAGED_BY: "dray"}}, "spec": spec}


def _container(
    settings: KubeRaySettings, name: str, cpus: float, memory: str, gpus: int = 0
) -> dict[str, Any]:
    limits = {"memory": memory, **({settings.gpu_resource: str(gpus)} if gpus else {})}
    own = {"POD_NAME": "metadata.name", "NODE_NAME": "spec.nodeName"}  # by which notices are found
    found: dict[str, Any] = {
        "name": name,
        "image": settings.image,
        "env": [
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in own.items()),
        ],
        "resources": {"requests": {"cpu": f"{cpus:g}", **limits}, "limits": limits},
    }
    if settings.env_secrets:
        found["envFrom"] = [{"secretRef": {"name": one}} for one in settings.env_secrets]
    return found


def _expiry(settings: KubeRaySettings) -> dict[str, Any]:
    """A container beside the head that deletes the cluster once it has expired: no driver need live."""
    small = {"cpu": "50m", "memory": "128Mi"}
    return {
        "name": "expiry",
        "image": settings.image,
        "command": [settings.python, "-m", "dray.cluster.providers.kuberay.expiry", settings.name],
        "resources": {"requests": small, "limits": {"memory": small["memory"]}},
    }
