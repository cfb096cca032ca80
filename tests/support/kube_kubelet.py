"""Scheduler and kubelet of the emulated Kubernetes: pods get a node, and processes where they are to be real.

``FOLDER/capacity.json`` says how many pods of a group find a node, and ``FOLDER/unpullable`` names an image
that no registry has. A real pod is a Ray node of this machine, started as KubeRay's generated command does,
and its other containers. Its processes get SIGTERM when the pod is deleted, and SIGKILL after its grace.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tests.support.kube_server import KubeServer

MARK = "DRAY_TEST_POD"
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_LONGEST_GRACE = 3.0  # seconds, whatever a pod says: tests do not wait longer

Pod = dict[str, Any]


class Kubelet:
    """All nodes. ``raylets``: pods are real."""

    def __init__(self, api: KubeServer, folder: Path, *, raylets: bool) -> None:
        self._api = api
        self._folder = folder
        self._raylets = raylets
        self._count = 0
        self._deleted_at: dict[str, float] = {}
        self._account = api.service_account(folder)

    def look(self) -> None:
        """Start and end what is due."""
        pods = self._api.objects("pods")
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp"):
                self._end(pod)
            elif pod["status"]["phase"] == "Pending" and self._has_node(pod):
                self._begin(pod)

    def end(self) -> None:
        """Kill all pods."""
        for pod in self._api.objects("pods"):
            send_signal(pod["metadata"]["name"], signal.SIGKILL)

    def _has_node(self, pod: Pod) -> bool:
        """Whether a node has the pod; one that finds none is marked as such."""
        if pod["spec"].get("nodeName"):
            return True
        group = labels_of(pod)["ray.io/group"]
        file = self._folder / "capacity.json"
        capacity = json.loads(file.read_text()).get(group) if file.exists() else None
        others = [one for one in self._api.objects("pods") if labels_of(one)["ray.io/group"] == group]
        if capacity is None or sum(bool(one["spec"].get("nodeName")) for one in others) < capacity:
            self._count += 1
            self._api.ask("PATCH", path_of(pod), {"spec": {"nodeName": f"node-{self._count}"}})
            return True
        if not pod["status"].get("conditions"):
            unschedulable = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            }
            self._tell(pod, {"phase": "Pending", "conditions": [unschedulable]})
        return False

    def _begin(self, pod: Pod) -> None:
        if self._lacks_image(pod):
            return
        self._count += 1
        address = f"127.16.{self._count // 250}.{self._count % 250 + 1}"
        if self._raylets and not self._start(pod, address):
            return
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        self._tell(pod, {"phase": "Running", "podIP": address, "conditions": ready})

    def _lacks_image(self, pod: Pod) -> bool:
        file = self._folder / "unpullable"
        image = pod["spec"]["containers"][0]["image"]
        if not file.exists() or file.read_text() != image:
            return False
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
        container = {"name": pod["spec"]["containers"][0]["name"], "state": {"waiting": waiting}}
        container |= {"image": image, "imageID": "", "ready": False, "restartCount": 0}
        self._tell(pod, {"phase": "Pending", "containerStatuses": [container]})
        return True

    def _start(self, pod: Pod, address: str) -> bool:
        """Start the pod's processes; false while a worker has no head to join.

        Raises:
            RuntimeError: Ray does not start; says why.
        """
        name = pod["metadata"]["name"]
        command = self._command(pod)
        if command is None:
            return False
        file = self._folder / f"{name}.log"
        environment = self._environment(pod)
        with file.open("ab") as log:
            command += ["--disable-usage-stats", f"--node-ip-address={address}"]
            if subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode != 0:
                raise RuntimeError(f"{name} did not start: {file.read_text()[-2000:]}")
            for container in pod["spec"]["containers"][1:]:
                subprocess.Popen(
                    container["command"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
        return True

    def _command(self, pod: Pod) -> list[str] | None:
        """``ray start`` with the parameters of the group, as KubeRay has it; None while there is no head."""
        given = json.loads(pod["metadata"]["annotations"]["start"])
        given.pop("dashboard-host", None)
        if "resources" in given:
            given["resources"] = json.loads(given["resources"])  # the quotes of a shell
        if labels_of(pod)["ray.io/node-type"] == "head":
            command = [*_RAY, "start", "--head", f"--temp-dir={self._folder / 'r'}"]
            command.append("--include-dashboard=false")
        else:
            head = self._head(labels_of(pod)["ray.io/cluster"])
            if head is None:
                return None
            port = json.loads(head["metadata"]["annotations"]["start"])["port"]
            command = [*_RAY, "start", f"--address={head['status']['podIP']}:{port}", "--num-cpus=1"]
        command += [f"--{key}={value}" for key, value in given.items()]
        labels = json.loads(pod["metadata"]["annotations"]["labels"])
        if labels:
            command.append("--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
        return command

    def _head(self, cluster: str) -> Pod | None:
        for pod in self._api.objects("pods"):
            labels = labels_of(pod)
            if labels["ray.io/cluster"] == cluster and labels["ray.io/node-type"] == "head":
                return pod if pod["status"]["phase"] == "Running" else None
        return None

    def _environment(self, pod: Pod) -> dict[str, str]:
        cluster = labels_of(pod)["ray.io/cluster"]
        token = self._api.ask("GET", f"/api/v1/namespaces/default/secrets/{cluster}")["data"]["auth_token"]
        return {
            **os.environ,
            "HOME": str(self._folder),
            MARK: pod["metadata"]["name"],
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": base64.b64decode(token).decode(),
            "DRAY_API_SERVER": self._api.url,
            "DRAY_SERVICE_ACCOUNT": str(self._account),
            "DRAY_LOOK_SECONDS": "0.5",
        }

    def _end(self, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        if name not in self._deleted_at:
            self._deleted_at[name] = time.monotonic()
            send_signal(name, signal.SIGTERM)
        living = self._raylets and send_signal(name, 0)
        if living and time.monotonic() - self._deleted_at[name] > _LONGEST_GRACE:
            send_signal(name, signal.SIGKILL)
        if not living:
            self._api.ask("DELETE", f"{path_of(pod)}?gracePeriodSeconds=0")

    def _tell(self, pod: Pod, status: dict[str, Any]) -> None:
        self._api.ask("PATCH", f"{path_of(pod)}/status", {"status": status})


def labels_of(pod: Pod) -> dict[str, str]:
    """Of a pod that the operator made."""
    found: dict[str, str] = pod["metadata"]["labels"]
    return found


def path_of(pod: Pod) -> str:
    """Of a pod, at the API server."""
    return f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"


def send_signal(pod: str, number: int) -> bool:
    """Send it to all processes of a pod, 0 sends nothing; whether there are any."""
    found = False
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == pod and process.status() != psutil.STATUS_ZOMBIE:
                found = True
                if number:
                    process.send_signal(number)
    return found
