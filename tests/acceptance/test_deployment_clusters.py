"""The same deployment on every kind of cluster: a block in Prefect, a run by its API, and the output file.

Each cluster is tested by itself in tests/integration/cluster, in each run of the tests; here `make chaos` has
them from end to end.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import SecretStr

from blocks import EC2RayCluster, ExistingRayCluster, KubeRayCluster, LocalRayCluster, ResultStore
from dray.ports import lasting_port
from tests.support.command import write_requests
from tests.support.deployment import RUN_SECONDS, processes, start
from tests.support.ec2_machines import Ec2Machines
from tests.support.kube_operator import kubernetes
from tests.support.moto_ec2 import MotoEc2
from tests.support.postgres import PostgresServer
from tests.support.prefect_server import PrefectServer
from tests.support.raylets import Raylets
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.long, pytest.mark.timeout(600)]

ROWS = 20

Gone = Callable[[], bool]
"""Whether nothing is left of what a run has made."""


@contextmanager
def _local(folder: Path) -> Iterator[tuple[Any, Gone]]:
    yield LocalRayCluster(num_cpus=2), lambda: True


@contextmanager
def _existing(folder: Path) -> Iterator[tuple[Any, Gone]]:
    raylets = Raylets(folder, 2)
    token = SecretStr(raylets.settings.auth_token or "")
    try:
        yield ExistingRayCluster(address=str(raylets.settings.address), auth_token=token), lambda: raylets.up
    finally:
        raylets.stop()


@contextmanager
def _ec2(folder: Path) -> Iterator[tuple[Any, Gone]]:
    with ExitStack() as stack:
        moto = MotoEc2()
        stack.callback(moto.stop)
        machines = Ec2Machines(moto.endpoint, folder)
        stack.callback(machines.stop)
        values = {**moto.values(), "workers": 1, "port": lasting_port(), "python": sys.executable}
        yield EC2RayCluster(**values), lambda: moto.left() == [] and not machines.running()


@contextmanager
def _kuberay(folder: Path) -> Iterator[tuple[Any, Gone]]:
    pytest.importorskip("kubernetes")
    with kubernetes(raylets=True) as operator:
        server = operator.server
        config = server.kubeconfig(folder)
        place: dict[str, Any] = {"kubeconfig": config, "port": lasting_port(), "python": sys.executable}
        block = KubeRayCluster(image="dray:1", gpus=0, **place)
        yield block, lambda: server.left() == [] and not operator.running()


CLUSTERS = {"local": _local, "existing": _existing, "ec2": _ec2, "kuberay": _kuberay}


@pytest.mark.parametrize("kind", CLUSTERS)
def test_the_deployment_runs_on_it_and_leaves_nothing(
    server: PrefectServer, tmp_path: Path, kind: str
) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", ROWS)
    with (
        tempfile.TemporaryDirectory(prefix="c-") as folder,  # short: Ray's sockets lie in it
        CLUSTERS[kind](Path(folder)) as (block, gone),
        PostgresServer() as postgres,
    ):
        with temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
            block.save(f"{kind}-here")
            url = postgres.url(
                postgres.create_database()
            )  # a rented head is another machine than the driver's
            ResultStore(url=SecretStr(url)).save(f"{kind}-store")
        run_id = start(
            server,
            {
                "input": str(requests),
                "output": str(tmp_path / "out"),
                "job_id": kind,
                "engine": {"name": "simulated"},
                "store": f"block:{kind}-store",
                "cluster": f"block:{block._block_type_slug}/{kind}-here",
            },
        )
        run = server.wait_for(run_id, RUN_SECONDS)
        assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
        assert run["state"]["message"] == f"{ROWS} done, 0 failed"
        assert len((tmp_path / "out/output.jsonl").read_text().splitlines()) == ROWS
        until(lambda: gone() and not processes(server), 60)
