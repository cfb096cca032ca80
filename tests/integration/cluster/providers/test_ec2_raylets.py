"""A rented cluster end to end: moto's instances run their user data here, and each is a real raylet."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.cluster import ClusterSettings, open_cluster
from dray.cluster.providers.ec2 import EC2Cluster
from tests.support.ec2_machines import Ec2Machines
from tests.support.moto_ec2 import MotoEc2
from tests.support.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoEc2]:
    server = MotoEc2()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def machines(moto: MotoEc2) -> Iterator[Ec2Machines]:
    with tempfile.TemporaryDirectory(prefix="e-") as folder:  # short: Ray's sockets lie in it
        found = Ec2Machines(moto.endpoint, Path(folder))
        yield found
        found.stop()


def settings(moto: MotoEc2, **changes: object) -> EC2Cluster:
    values = {"workers": 2, "minimum": 2, "port": free_port(), "python": sys.executable, **changes}
    return moto.settings(**values)


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_job_rents_joins_uses_and_releases_a_cluster(
    moto: MotoEc2, machines: Ec2Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # given back at the end
    cluster = open_cluster(ClusterSettings(provider=settings(moto)))
    cluster.start()
    try:
        info = cluster.wait()
        import ray

        heads = [node for node in info.nodes if node.stable]
        assert [node.cpus for node in heads] == [0.0]
        assert sum(1 for node in info.nodes if node.cpus) == 2
        assert info.stable_resource == "dray_stable"
        where = ray.remote(num_cpus=1)(_address).remote()
        assert ray.get(where, timeout=60) in {node.address for node in info.nodes if node.cpus}
    finally:
        cluster.leave()
        cluster.release()
    assert moto.left() == []
    until(lambda: not machines.running())


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def test_machines_whose_driver_is_gone_end_themselves(moto: MotoEc2, machines: Ec2Machines) -> None:
    """Nobody sweeps: each machine reads its own tag."""
    one = settings(moto, workers=1, minimum=0).open()
    one.start()
    until(lambda: len(machines.running()) == 2)
    ids = [found["InstanceId"] for found in moto.live()]
    moto.ec2.create_tags(Resources=ids, Tags=[{"Key": "dray-expires", "Value": str(int(time.time()))}])
    until(lambda: moto.live() == [])
    assert all("dray: expired" in machines.console(name) for name in ids)
    one.release()
    assert moto.left() == []


def test_another_version_of_ray_on_the_image_is_said_on_the_console(
    moto: MotoEc2, machines: Ec2Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.cluster.providers.ec2.requests.version", lambda _: "2.59.0")
    one = settings(moto, workers=0, minimum=0).open()
    one.start()
    [head] = one.nodes()
    until(lambda: "must be the same" in machines.console(head.name))
    assert "and the driver 2.59.0" in machines.console(head.name)
    one.release()
