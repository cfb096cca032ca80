"""Pods that cannot start: what is told, and when a start ends for it."""

from __future__ import annotations

from typing import Any

import pytest

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.pods import QUEUED, Pod, pods_of, refusal_of
from dray.cluster.providers.kuberay.waiting import STUCK_SECONDS, Waiting
from dray.errors import ClusterError

pytestmark = pytest.mark.unit

PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
CRASH: dict[str, Any] = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}, "restartCount": 3}


def pod(state: dict[str, Any], *, ready: bool = False, kind: str = "head", **more: Any) -> Pod:
    labels = {"ray.io/cluster": "c", "ray.io/node-type": kind, "ray.io/group": "spot"}
    status: dict[str, Any] = {"name": "ray", "state": state, "ready": ready, **more}
    conditions = [{"type": "Ready", "status": str(ready)}]
    body = {"phase": "Pending", "containerStatuses": [status], "conditions": conditions}
    [found] = pods_of([{"metadata": {"name": f"p-{kind}", "labels": labels}, "status": body}])
    return found


@pytest.mark.parametrize(
    ("found", "stuck"),
    [
        (pod(PULL), "ImagePullBackOff: no such image"),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}, **CRASH), "CrashLoopBackOff: no more is said"),
        (pod({"running": {}}, **CRASH), "ray ended with exit code 1, and was started again"),
        (pod({"running": {}}, ready=True, **CRASH), ""),
        (pod({"waiting": {"reason": "ContainerCreating"}}), ""),
        (pod({"running": {}}), ""),
    ],
)
def test_what_a_pod_is_stuck_by(found: Pod, stuck: str) -> None:
    assert found.stuck == stuck


def test_only_what_is_stuck_all_the_time_ends_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dray.cluster.providers.kuberay.waiting.time.monotonic", lambda: now)
    one = Waiting(KubeRayCluster(name="c", image="i"), "the cluster c")
    one.look([pod(PULL)], head=False, workers=0, refusal="")
    now = STUCK_SECONDS
    one.look([pod({"running": {}})], head=False, workers=0, refusal="")  # it came after all
    now += STUCK_SECONDS
    one.look([pod({"running": {}}, **CRASH)], head=False, workers=0, refusal="")
    now += STUCK_SECONDS - 1
    crashing = pod({"waiting": {"reason": "CrashLoopBackOff"}}, **CRASH)
    one.look([crashing], head=False, workers=0, refusal="")
    now += 2
    with pytest.raises(
        ClusterError, match=r"the cluster c: its head is not ready after 361 s \(p-head: Crash"
    ):
        one.look([crashing], head=False, workers=0, refusal="")


def test_a_worker_that_waits_for_a_node_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dray.cluster.providers.kuberay.waiting.time.monotonic", lambda: now)
    one = Waiting(KubeRayCluster(name="c", image="i"), "the cluster c")
    pods = [pod({"running": {}}, ready=True), pod(PULL, kind="worker"), pod({}, kind="worker")]
    one.look(pods, head=True, workers=0, refusal="")
    now = 2 * STUCK_SECONDS
    one.look(pods, head=True, workers=0, refusal="")


def test_time_in_the_queue_does_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr("dray.cluster.providers.kuberay.waiting.time.monotonic", lambda: now)
    one = Waiting(KubeRayCluster(name="c", image="i", start_seconds=60), "the cluster c")
    now = 50.0
    one.look([], head=False, workers=0, refusal="")
    for now in (55.0, 1000.0, 5000.0):  # noqa: B007  the clock
        one.look([], head=False, workers=0, refusal="", queued=True)
    now = 5009.0
    one.look([], head=False, workers=0, refusal="")
    now = 5011.0
    with pytest.raises(ClusterError, match=r"not ready after 61 s \(KubeRay has made no pod: does it run\?"):
        one.look([], head=False, workers=0, refusal="")
    assert [message for message in caplog.messages if QUEUED in message] == [
        f"the cluster c waits: {QUEUED}, and start_seconds do not count until then"
    ]


def test_what_kuberay_cannot_make() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "Failed", "message": "exceeded\n quota"}
    assert refusal_of({"status": {"conditions": [failure]}}) == "exceeded quota"
    assert refusal_of({"status": {"conditions": [failure | {"status": "False"}]}}) == ""
    assert refusal_of({}) == ""
