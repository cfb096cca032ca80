"""The part of KubeRay's operator, with scheduler and kubelet, in a process of its own: pods from RayClusters.

::

    python -m tests.support.kube_operator URL FOLDER [raylets]      ends when its stdin does

As KubeRay 1.7 does it: a secret with the token, a service, a head, and so many workers in each group. Pods
that ``workersToDelete`` names go first, then surplus ones. With ``raylets`` each pod is a real Ray node.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.kube_kubelet import MARK, Kubelet, Pod, labels_of, path_of
from tests.support.kube_server import KubeServer
from tests.support.stdin import stdin_ended

_LOOK_SECONDS = 0.2

Cluster = dict[str, Any]


class KubeOperator:
    """The operator, seen from a test."""

    def __init__(self, server: KubeServer, folder: Path, *, raylets: bool = False) -> None:
        self.server = server
        self.folder = folder
        command = [sys.executable, "-m", "tests.support.kube_operator", server.url, str(folder)]
        self._process = subprocess.Popen(
            [*command, *(["raylets"] if raylets else [])],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def capacity(self, **groups: int) -> None:
        """How many pods of each group find a node; of groups that are not named any number."""
        part = self.folder / "capacity.part"
        part.write_text(json.dumps({name.replace("_", "-"): count for name, count in groups.items()}))
        part.replace(self.folder / "capacity.json")

    def refuse(self, message: str = "") -> None:
        """Make no pods any more, as with a quota that is used up; "" makes them again."""
        (self.folder / "refusal").write_text(message)

    def unpullable(self, image: str) -> None:
        """No registry has this image from now on."""
        (self.folder / "unpullable").write_text(image)

    def running(self) -> set[str]:
        """Pods of which a process lives."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                found.add(process.environ().get(MARK, ""))
        return found - {""}

    def log(self, pod: str) -> str:
        """What the processes of a pod have said."""
        file = self.folder / f"{pod}.log"
        return file.read_text() if file.exists() else ""

    def stop(self) -> None:
        """End it, and all pods."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def kubernetes(*, raylets: bool = False) -> Iterator[KubeOperator]:
    """A server and an operator, until the end of the block."""
    server = KubeServer()
    try:
        with tempfile.TemporaryDirectory(prefix="k-") as folder:  # short: Ray's sockets lie in it
            operator = KubeOperator(server, Path(folder), raylets=raylets)
            try:
                yield operator
            finally:
                operator.stop()
    finally:
        server.stop()


class _Operator:
    def __init__(self, api: KubeServer, folder: Path) -> None:
        self._api = api
        self._refusal = folder / "refusal"

    def look(self) -> None:
        """Have all clusters as they are to be."""
        for cluster in self._api.objects("rayclusters"):
            name = cluster["metadata"]["name"]
            pods = [one for one in self._api.objects("pods") if labels_of(one)["ray.io/cluster"] == name]
            self._have_token(cluster)
            refusal = self._refusal.read_text() if self._refusal.exists() else ""
            heads = [one for one in pods if labels_of(one)["ray.io/node-type"] == "head"]
            if cluster["spec"].get("suspend"):
                for pod in pods:
                    self._api.ask("DELETE", path_of(pod))
            elif not refusal:
                self._reconcile(cluster, heads, pods)
            self._tell(cluster, heads, refusal)

    def _reconcile(self, cluster: Cluster, heads: list[Pod], pods: list[Pod]) -> None:
        if not heads:
            self._pod(cluster, "head", "headgroup", cluster["spec"]["headGroupSpec"])
        for group in cluster["spec"]["workerGroupSpecs"]:
            mine = [one for one in pods if labels_of(one)["ray.io/group"] == group["groupName"]]
            self._fill(cluster, group, mine)

    def _have_token(self, cluster: Cluster) -> None:
        name = cluster["metadata"]["name"]
        if name not in {one["metadata"]["name"] for one in self._api.objects("secrets")}:
            token = base64.b64encode(secrets.token_hex(16).encode()).decode()
            self._create("secrets", cluster, name, {"data": {"auth_token": token}})
            self._create("services", cluster, f"{name}-head-svc", {})

    def _fill(self, cluster: Cluster, group: dict[str, Any], pods: list[Pod]) -> None:
        """Pods that are being deleted count, unless they are named; of too many, the first ones go."""
        named = (group.get("scaleStrategy") or {}).get("workersToDelete") or []
        going = [one for one in pods if one["metadata"]["name"] in named]
        others = [one for one in pods if one not in going]
        more = group.get("replicas", 0) - len(others)
        for pod in [*going, *others[: max(-more, 0)]]:
            self._api.ask("DELETE", path_of(pod))
        for _ in range(more):
            self._pod(cluster, "worker", group["groupName"], group)

    def _pod(self, cluster: Cluster, kind: str, group: str, spec: dict[str, Any]) -> None:
        name = cluster["metadata"]["name"]
        template = spec["template"]
        labels = {"ray.io/cluster": name, "ray.io/node-type": kind, "ray.io/group": group}
        metadata = {
            "labels": template["metadata"].get("labels", {}) | labels,
            "annotations": {
                "start": json.dumps(spec["rayStartParams"]),
                "labels": json.dumps(spec.get("labels", {})),
            },
        }
        body = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        self._create("pods", cluster, f"{name}-{group}-{secrets.token_hex(3)}", body)

    def _tell(self, cluster: Cluster, heads: list[Pod], refusal: str) -> None:
        name = cluster["metadata"]["name"]
        address = heads[0]["status"].get("podIP", "") if heads else ""
        status: dict[str, Any] = {"head": {"serviceName": f"{name}-head-svc", "podIP": address}}
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateWorkerPod"}
        failure |= {"message": refusal, "lastTransitionTime": cluster["metadata"]["creationTimestamp"]}
        status["conditions"] = [failure] if refusal else []
        if cluster.get("status") != status:
            path = f"/apis/ray.io/v1/namespaces/default/rayclusters/{name}/status"
            self._api.ask("PATCH", path, {"status": status})

    def _create(self, kind: str, owner: Cluster, name: str, body: dict[str, Any]) -> None:
        owned = {"uid": owner["metadata"]["uid"], "kind": "RayCluster", "name": owner["metadata"]["name"]}
        metadata = {**body.get("metadata", {}), "name": name, "ownerReferences": [owned]}
        self._api.ask("POST", f"/api/v1/namespaces/default/{kind}", {**body, "metadata": metadata})


def main() -> None:
    """Reconcile until stdin ends."""
    api = KubeServer.at(sys.argv[1])
    folder = Path(sys.argv[2])
    operator, kubelet = _Operator(api, folder), Kubelet(api, folder, raylets="raylets" in sys.argv[3:])
    ended = stdin_ended()
    try:
        while not ended.wait(_LOOK_SECONDS):
            for part in (operator, kubelet):
                with suppress(urllib.error.HTTPError, OSError):  # an object went meanwhile, or a test's fault
                    part.look()
    finally:
        with suppress(OSError):
            kubelet.end()


if __name__ == "__main__":
    main()
