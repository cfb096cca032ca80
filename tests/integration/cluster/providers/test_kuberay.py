"""A RayCluster's life at an API server that judges it by KubeRay's schema, and what goes wrong there."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dray.cluster.providers.kuberay import waiting
from dray.cluster.providers.kuberay.objects import ELASTIC, EXPIRES, MANAGED_BY
from dray.cluster.providers.kuberay.pods import QUEUED
from dray.cluster.providers.protocol import Market, Phase
from dray.errors import ClusterError, ConfigError
from tests.support.kube_operator import KubeOperator
from tests.support.kube_scene import CLUSTERS, groups, provider
from tests.support.kube_server import KubeServer
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

pytest.importorskip("kubernetes")


def test_the_life_of_a_cluster(server: KubeServer, operator: KubeOperator, tmp_path: Path) -> None:
    one = provider(server, tmp_path)
    one.start()
    access = one.access()
    [secret] = server.objects("secrets")
    assert access.auth_token == base64.b64decode(secret["data"]["auth_token"]).decode()
    assert access.address.endswith(":6379")
    until(lambda: len(one.nodes()) == 3)
    head, *workers = one.nodes()
    assert (head.head, head.market, head.address) == (True, Market.ON_DEMAND, access.address[:-5])
    assert [(worker.market, worker.phase) for worker in workers] == [(Market.SPOT, Phase.UP)] * 2
    assert head.expires is not None
    assert 1700 < head.expires - time.time() <= 1800
    one.start()  # again: nothing is made twice
    assert [name for name in server.left() if name.startswith("rayclusters/")] == ["rayclusters/test"]
    assert one.desire(4).wanted == 4
    until(lambda: len(one.nodes()) == 5)
    [first, *_] = [node.name for node in one.nodes() if not node.head]
    one.drain([first])
    until(lambda: first not in [node.name for node in one.nodes()])
    assert groups(server) == {"spot": 3, "on-demand": 0}
    one.desire(1)
    until(lambda: len(one.nodes()) == 2)
    assert "test" in one.where
    assert one.sweep() == ()
    released = one.release()
    assert released[0] == "test"
    assert head.name in released
    assert server.left() == []
    assert one.release() == ()
    with pytest.raises(ClusterError, match="being released"):
        one.desire(1)


def test_what_is_planned_is_what_is_sent(server: KubeServer, tmp_path: Path) -> None:
    one = provider(server, tmp_path, queue="batch", instance_type="g6e.xlarge", image_pull_secrets=("pull",))
    [planned] = one.plan()
    assert server.objects("rayclusters") == []
    one.start()
    sent = server.ask("GET", f"{CLUSTERS}/test")
    body: dict[str, Any] = json.loads(json.dumps(planned.body))
    assert sent["spec"] == body["spec"]
    assert sent["metadata"]["labels"] == {MANAGED_BY: "dray", "kueue.x-k8s.io/queue-name": "batch"}
    one.desire(3)
    assert server.ask("GET", f"{CLUSTERS}/test")["metadata"]["annotations"][ELASTIC] == "true"
    one.release()


def test_a_cluster_in_the_queue_of_kueue_is_waited_for(
    server: KubeServer, operator: KubeOperator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operator.capacity(headgroup=0, spot=0)  # nothing is ready before the cluster is suspended
    one = provider(server, tmp_path, queue="batch", start_seconds=4)
    one.start()
    before = server.ask("GET", f"{CLUSTERS}/test")["metadata"]["annotations"][EXPIRES]
    server.ask("PATCH", f"{CLUSTERS}/test", {"spec": {"suspend": True}})
    until(lambda: one.desire(2).reasons == (f"the cluster: {QUEUED}",))
    assert server.objects("pods") == []
    operator.capacity()

    def admit() -> None:
        server.ask("PATCH", f"{CLUSTERS}/test", {"spec": {"suspend": False}})

    one._kept -= 601
    time.sleep(1.1)  # expiries are whole seconds
    began = time.monotonic()
    admitted = threading.Timer(6, admit)
    admitted.start()
    assert one.access().minimum == 1
    admitted.join()
    assert time.monotonic() - began > 6
    assert len([message for message in caplog.messages if QUEUED in message]) == 1
    assert server.ask("GET", f"{CLUSTERS}/test")["metadata"]["annotations"][EXPIRES] > before
    one.release()


def test_every_pod_gets_the_keys_of_secrets_that_the_settings_name(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    one = provider(server, tmp_path, env_secrets=("dray-env",), on_demand_selector={})
    one.start()
    one.access()
    until(lambda: len(server.objects("pods")) == 3)
    for pod in server.objects("pods"):
        assert pod["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "dray-env"}}]
    one.desire(3)  # what has no selector comes back as it was
    spec = server.ask("GET", f"{CLUSTERS}/test")["spec"]
    assert not spec["workerGroupSpecs"][1]["template"]["spec"].get("nodeSelector")
    one.release()


def test_pods_that_no_spot_node_takes_get_one_on_demand(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    operator.capacity(spot=1)
    one = provider(server, tmp_path, spot_seconds=1)
    one.start()
    one.access()
    until(lambda: one.desire(2).reasons == () and len(one.desire(2).machines) == 2)
    assert groups(server) == {"spot": 1, "on-demand": 1}
    assert {node.market for node in one.nodes() if not node.head} == {Market.SPOT, Market.ON_DEMAND}
    one.release()


def test_with_time_to_the_deadline_pods_wait_for_spot(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    operator.capacity(spot=1)
    one = provider(server, tmp_path, workers=3, spot_seconds=1)
    one.start()
    one.desire(3, 0)
    one.access()
    time.sleep(2.2)
    grant = one.desire(3, 0)
    assert len(grant.machines) == 1
    assert grant.reasons == ("spot: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",)
    assert groups(server) == {"spot": 3, "on-demand": 0}
    until(lambda: len(one.desire(3, 1).machines) == 2)
    assert groups(server) == {"spot": 2, "on-demand": 1}
    assert len(one.nodes()) == 3  # what waits is no machine
    operator.capacity()  # spot is there again
    until(lambda: len(one.desire(3, 1).machines) == 3)
    assert groups(server) == {"spot": 2, "on-demand": 1}
    one.release()


def test_a_start_makes_up_for_missing_spot_while_it_waits(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    operator.capacity(spot=0)
    one = provider(server, tmp_path, minimum=2, spot_seconds=1)
    one.start()
    assert one.access().minimum == 2
    assert groups(server) == {"spot": 0, "on-demand": 2}
    one.release()


def test_capacity_that_never_comes_is_told_in_time(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    operator.capacity(spot=0)
    one = provider(server, tmp_path, on_demand=False, start_seconds=1, join_seconds=1)
    one.start()
    with pytest.raises(ClusterError, match=r"0 of at least 1 workers are ready after \d s \(test-spot.*0/3"):
        one.access()
    one.release()
    assert server.left() == []


def test_a_head_that_never_comes_is_told_in_time(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    operator.capacity(headgroup=0)
    one = provider(server, tmp_path, start_seconds=1)
    one.start()
    with pytest.raises(ClusterError, match=r"its head is not ready after \d s \(.*Insufficient"):
        one.access()
    one.release()


def test_an_image_that_no_registry_has_ends_the_start_early(
    server: KubeServer, operator: KubeOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STUCK_SECONDS", 1.0)
    operator.unpullable("dray:typo")
    one = provider(server, tmp_path, image="dray:typo")
    one.start()
    with pytest.raises(ClusterError, match=r"its head is not ready after \d s \(test-headgroup.*dray:typo"):
        one.access()
    one.release()


def test_a_quota_is_told_while_the_start_waits_and_in_its_error(
    server: KubeServer, operator: KubeOperator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operator.refuse('pods "test-head" is forbidden: exceeded quota: gpus')
    one = provider(server, tmp_path, start_seconds=2)
    one.start()
    with pytest.raises(ClusterError, match=r"its head is not ready after \d s \(KubeRay: .*quota: gpus"):
        one.access()
    told = [message for message in caplog.messages if "exceeded quota" in message]
    assert len(told) == 1, "said at once, and not at every look"
    assert one.desire(3).reasons == ('KubeRay: pods "test-head" is forbidden: exceeded quota: gpus',)
    one.release()


def test_the_expiry_is_put_off_and_a_sweep_releases_what_has_expired(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    one = provider(server, tmp_path)
    one.start()
    before = server.ask("GET", f"{CLUSTERS}/test")["metadata"]["annotations"][EXPIRES]
    one.keep()  # not due yet
    one._kept -= 601
    time.sleep(1.1)
    one.keep()
    assert server.ask("GET", f"{CLUSTERS}/test")["metadata"]["annotations"][EXPIRES] > before
    other = provider(server, tmp_path, name="other")
    other.start()
    server.ask("PATCH", f"{CLUSTERS}/test", {"metadata": {"annotations": {EXPIRES: "1"}}})
    [swept] = other.sweep()
    assert (swept.cluster, swept.kind) == ("test", "RayCluster")
    assert [found["metadata"]["name"] for found in server.objects("rayclusters")] == ["other"]
    other.release()


def test_a_cluster_deletes_itself_when_it_has_expired(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    """The container beside the head, with its pod's service account, also through a server that fails."""
    one = provider(server, tmp_path)
    one.start()
    head = server.ask("GET", f"{CLUSTERS}/test")["spec"]["headGroupSpec"]
    command = head["template"]["spec"]["containers"][1]["command"]
    server.fail("GET", "rayclusters/test$", 500, times=2)
    watchdog = subprocess.Popen(
        [sys.executable, *command[1:]],
        env={
            **os.environ,
            "DRAY_API_SERVER": server.url,
            "DRAY_SERVICE_ACCOUNT": str(server.service_account(tmp_path)),
            "DRAY_LOOK_SECONDS": "0.1",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(1.5)
        assert len(server.objects("rayclusters")) == 1
        server.ask(
            "PATCH", f"{CLUSTERS}/test", {"metadata": {"annotations": {EXPIRES: str(int(time.time()))}}}
        )
        until(lambda: server.objects("rayclusters") == [])
        assert watchdog.poll() is None
    finally:
        watchdog.kill()
    assert "asked again" in watchdog.communicate()[1]
    until(lambda: server.left() == [])


def test_another_ones_change_in_between_is_not_lost(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    one = provider(server, tmp_path)
    one.start()
    server.fail("PATCH", "rayclusters/test$", 409, times=2)
    one.desire(3)
    assert groups(server) == {"spot": 3, "on-demand": 0}
    server.fail("PATCH", "rayclusters/test$", 409, times=9)
    with pytest.raises(ClusterError, match="another program changes it again and again"):
        one.desire(4)
    server.forgive()
    one.release()


def test_a_shrink_while_a_pod_is_evicted_takes_that_and_no_healthy_one(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    one = provider(server, tmp_path, workers=3, minimum=3)
    one.start()
    one.access()
    names = [node.name for node in one.nodes() if not node.head]
    server.ask("DELETE", f"/api/v1/namespaces/default/pods/{names[-1]}")
    one.desire(2)
    until(lambda: names[-1] not in [node.name for node in one.nodes()])
    time.sleep(1)
    assert [node.name for node in one.nodes() if not node.head] == names[:2]
    one.release()


def test_a_cluster_that_another_process_makes_at_the_same_moment_is_left_to_it(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    first, second = provider(server, tmp_path), provider(server, tmp_path, of_job=True)
    first.start()
    look, looks = second._api.cluster, iter([True, False])
    second._api.cluster = lambda name: None if next(looks) else look(name)  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="made by another process at the same moment"):
        second.start()
    second.leave()
    assert len(server.objects("rayclusters")) == 1
    first.release()


def test_a_cancel_while_it_starts_releases_it(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    operator.capacity(headgroup=0)
    one = provider(server, tmp_path, of_job=True)
    one.start()
    threading.Timer(0.5, one.leave).start()
    with pytest.raises(ClusterError, match="being released"):
        one.access()
    until(lambda: server.left() == [])


def test_a_cancel_before_it_is_made_makes_nothing(
    server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start looks first whether KubeRay is there."""
    one = provider(server, tmp_path, of_job=True)
    api, made = one._api, server.objects("rayclusters")
    look = api.clusters

    def cancelled() -> list[dict[str, Any]]:
        one.leave()
        return look()

    monkeypatch.setattr(api, "clusters", cancelled)
    with pytest.raises(ClusterError, match="being released"):
        one.start()
    assert server.objects("rayclusters") == made


@pytest.mark.heavy(one_of=3)
def test_a_job_is_submitted_through_the_api_server(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    """To the jobs API of the head, which takes the token in a header of its own."""
    got: list[tuple[str, str, Any]] = []

    class Jobs(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers["X-Ray-Authorization"], body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"submission_id": body["submission_id"]}).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    jobs = HTTPServer(("127.0.0.1", 0), Jobs)
    threading.Thread(target=jobs.serve_forever, args=(0.02,), daemon=True).start()
    one = provider(server, tmp_path)
    with pytest.raises(ClusterError, match="is not there; start it first"):
        one.submit(["run", "in.jsonl"])
    one.start()
    token = one.access().auth_token
    address = {"metadata": {"annotations": {"test/address": f"http://127.0.0.1:{jobs.server_port}"}}}
    server.ask("PATCH", "/api/v1/namespaces/default/services/test-head-svc", address)
    name = one.submit(["run", "s3://b/in.jsonl", "--model", "m"])
    [(path, given, body)] = got
    assert path == "/api/jobs/"
    assert given == f"Bearer {token}"
    assert body["submission_id"] == name
    assert body["entrypoint"].endswith("run s3://b/in.jsonl --model m --cluster auto")
    with pytest.raises(ConfigError, match="name what is to run"):
        one.submit(["status"])
    with pytest.raises(ConfigError, match="--store, shows a login"):
        one.submit(["run", "x", "--store", "postgresql://me:hidden-word@host/dray"])
    assert len(got) == 1
    one.release()
    jobs.shutdown()
