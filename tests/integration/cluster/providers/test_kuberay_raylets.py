"""A RayCluster end to end: the operator's part makes a real Ray node of each pod, and a job uses them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.cluster.providers.kuberay.objects import EXPIRES
from dray.ports import lasting_port
from dray.store import open_store
from tests.support.command import Command, committed, dray, run_arguments, write_requests
from tests.support.kube_operator import KubeOperator, kubernetes
from tests.support.kube_server import KubeServer
from tests.support.postgres import PostgresServer
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(420)]

pytest.importorskip("kubernetes")


@pytest.fixture(scope="module")
def operator() -> Iterator[KubeOperator]:
    with kubernetes(raylets=True) as found:
        yield found


@pytest.fixture(scope="module")
def server(operator: KubeOperator) -> KubeServer:
    return operator.server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """SQLite is refused: the rented head is another machine."""
    with PostgresServer() as found:
        yield found


def settings_file(server: KubeServer, folder: Path) -> Path:
    """For a cluster of one worker."""
    values = {
        "name": "job", "image": "dray:1", "kubeconfig": server.kubeconfig(folder), "gpus": 0,
        "instance_type": "g6.xlarge", "port": lasting_port(), "python": sys.executable,
    }  # fmt: skip
    lines = [f"{key} = {json.dumps(one)}" for key, one in values.items()]
    file = folder / "cluster.toml"
    file.write_text("\n".join(['kind = "kuberay"', *lines]))
    return file


def test_a_job_makes_joins_uses_and_deletes_a_cluster(
    server: KubeServer, operator: KubeOperator, postgres: PostgresServer, tmp_path: Path
) -> None:
    """The command, its flow in Prefect, a replica on the worker's pod, the output file, and nothing left."""
    file = settings_file(server, tmp_path)
    rows = write_requests(tmp_path / "in.jsonl", 20)
    store = postgres.url(postgres.create_database())
    more = ["--cluster", str(file), "--budget", "100"]  # dollars: the node's type has a price, by its label
    ended = dray(tmp_path, *run_arguments(rows, tmp_path / "out", *more, store=store))
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == 20
    assert len((tmp_path / "out/output.jsonl").read_text().splitlines()) == 20
    assert ended.json["cost"]["dollars"] > 0
    with open_store(store, create=False) as opened:
        [replica] = opened.replicas("job")
    assert replica.node is not None
    until(lambda: server.left() == [])
    until(lambda: not operator.running())


def test_a_cluster_whose_driver_is_killed_deletes_itself(
    server: KubeServer, operator: KubeOperator, postgres: PostgresServer, tmp_path: Path
) -> None:
    """No sweep runs: the container beside the head reads the expiry, and every process of the pods ends."""
    file = settings_file(server, tmp_path)
    rows = write_requests(tmp_path / "in.jsonl", 400)
    slow = ["--engine-arg", "max_num_seqs=1", "--engine-arg", "seconds_per_token=0.2"]
    store = postgres.url(postgres.create_database())
    arguments = run_arguments(rows, tmp_path / "out", "--cluster", str(file), *slow, store=store)
    command = Command(arguments=arguments, folder=tmp_path / "log")
    command.until(lambda: committed(tmp_path / "out", store=store) > 0, what="the first answer")
    command.kill9()
    [cluster] = server.objects("rayclusters")
    assert len(operator.running()) == 2
    path = f"/apis/ray.io/v1/namespaces/default/rayclusters/{cluster['metadata']['name']}"
    server.ask("PATCH", path, {"metadata": {"annotations": {EXPIRES: str(int(time.time()))}}})
    until(lambda: server.left() == [])
    until(lambda: not operator.running())
