"""What an API server refuses, or does not answer: dray says what to do, and leaves nothing there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ClusterError, ConfigError
from tests.support.kube_operator import KubeOperator
from tests.support.kube_scene import CLUSTERS, provider
from tests.support.kube_server import KubeServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

pytest.importorskip("kubernetes")


@pytest.mark.parametrize("status", [429, 500, 503, 0])
def test_a_busy_or_silent_server_is_asked_again(
    server: KubeServer, operator: KubeOperator, tmp_path: Path, status: int
) -> None:
    one = provider(server, tmp_path)
    server.fail("POST", "rayclusters", status, after=True)  # it was made, and the answer is lost
    one.start()
    assert [name for name in server.left() if name.startswith("rayclusters/")] == ["rayclusters/test"]
    assert one._made
    one.release()


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "told"),
    [
        ("GET", "rayclusters\\?", 401, ConfigError, r"does not accept the credentials \(401\)"),
        ("POST", "rayclusters", 403, ConfigError, "create rayclusters is not allowed .*rbac.yaml"),
        ("GET", "rayclusters\\?", 403, ConfigError, "get rayclusters is not allowed"),
        ("POST", "rayclusters", 422, ConfigError, "does not take the object"),
        ("GET", "rayclusters\\?", 503, ClusterError, "status 503"),
        ("GET", "rayclusters\\?", 0, ClusterError, "does not answer"),
    ],
)
def test_what_the_server_refuses_is_told_and_nothing_is_left(
    server: KubeServer, operator: KubeOperator, tmp_path: Path,
    method: str, path: str, status: int, kind: type[Exception], told: str,
) -> None:  # fmt: skip
    one = provider(server, tmp_path)
    server.fail(method, path, status, times=99)
    began = time.monotonic()
    with pytest.raises(kind, match=told):
        one.start()
    assert time.monotonic() - began < 10
    server.forgive()
    assert server.left() == []


def test_a_lost_answer_and_a_refused_delete_name_what_may_be_left(server: KubeServer, tmp_path: Path) -> None:
    one = provider(server, tmp_path)
    server.fail("POST", "rayclusters", 500, times=99, after=True)
    server.fail("DELETE", "rayclusters", 403, times=99)
    with pytest.raises(ClusterError, match=r"may be there all the same: .*delete rayclusters is not allowed"):
        one.start()


def test_without_kuberay_nothing_is_made(server: KubeServer, tmp_path: Path) -> None:
    server.without_ray()
    with pytest.raises(ConfigError, match=r"knows no RayClusters: install KubeRay 1\.7"):
        provider(server, tmp_path).start()
    server.without_ray(missing=False)
    assert server.objects("rayclusters") == []


def test_a_wrong_token_and_missing_configurations_are_told(server: KubeServer, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    config = server.kubeconfig(tmp_path / "old", token="old")
    with pytest.raises(ConfigError, match="log in again"):
        provider(server, tmp_path, kubeconfig=config).start()
    with pytest.raises(
        ConfigError, match=r"no Kubernetes cluster can be asked: .*see context and kubeconfig"
    ):
        provider(server, tmp_path, kubeconfig=str(tmp_path / "none")).start()
    with pytest.raises(ConfigError, match="no Kubernetes cluster can be asked"):
        provider(server, tmp_path, context="other").start()


def test_a_cluster_of_somebody_else_is_left_alone(
    server: KubeServer, operator: KubeOperator, tmp_path: Path
) -> None:
    one = provider(server, tmp_path)
    [planned] = one.plan()
    foreign: dict[str, Any] = json.loads(json.dumps(planned.body))
    foreign["metadata"]["labels"] = {}
    server.ask("POST", CLUSTERS, foreign)
    with pytest.raises(ConfigError, match="not of dray: give the cluster another name"):
        one.start()
    assert len(server.objects("rayclusters")) == 1
    one.leave()
    with pytest.raises(ConfigError, match="not of dray"):
        one.release()  # as `dray cluster down` does it
    assert len(server.objects("rayclusters")) == 1
