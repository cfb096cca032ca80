"""moto's EC2 and an API server of Kubernetes, for the tests of a file; each test leaves nothing there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kube_operator import KubeOperator, kubernetes
from tests.support.kube_scene import CLUSTERS
from tests.support.kube_server import KubeServer
from tests.support.moto_ec2 import MotoEc2
from tests.support.waiting import until


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoEc2]:
    server = MotoEc2()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    moto = request.getfixturevalue("moto") if "moto" in request.fixturenames else None
    yield
    assert moto is None or moto.left() == []


@pytest.fixture(scope="module")
def operator() -> Iterator[KubeOperator]:
    with kubernetes() as found:
        yield found


@pytest.fixture(scope="module")
def server(operator: KubeOperator) -> KubeServer:
    return operator.server


@pytest.fixture
def nothing_left(server: KubeServer, operator: KubeOperator) -> Iterator[None]:
    """Each test finds an empty cluster that refuses nothing, and leaves one."""
    operator.capacity()
    operator.refuse("")
    yield
    server.forgive()
    server.without_ray(missing=False)
    for one in server.objects("rayclusters"):
        server.ask("DELETE", f"{CLUSTERS}/{one['metadata']['name']}")
    until(lambda: server.left() == [])
