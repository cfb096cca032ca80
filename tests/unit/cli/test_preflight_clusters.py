"""What a job on a cluster is refused for before its rows are read and a machine is asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.cli.preflight import preflight
from dray.cluster.ray_private import FoundNode
from dray.errors import ConfigError
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings

pytestmark = pytest.mark.unit

LOCAL_RAY = "ray._private.services.find_node_ids"


@pytest.fixture
def rented(tmp_path: Path) -> str:
    file = tmp_path / "gpus.toml"
    file.write_text('kind = "kuberay"\nimage = "dray:1"\n')
    return str(file)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Something listens there, and this machine runs no node of Ray."""
    monkeypatch.setattr(LOCAL_RAY, set)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def request_of(job_input: Path, folder: Path, **more: Any) -> JobRequest:
    given = {"input": str(job_input), "model": "simulated", "output": str(folder / "out")}
    return JobRequest.of(**{**given, "engine": {"name": "simulated"}, **more})


@pytest.mark.parametrize("store", [None, "sqlite:///jobs.db", "env:JOBS"])
def test_a_job_that_rents_machines_needs_another_store_than_sqlite(
    store: str | None, job_input: Path, tmp_path: Path, rented: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOBS", "jobs.db")
    with pytest.raises(ConfigError, match=r"SQLite.*one machine.*--store env:NAME.*postgresql://"):
        preflight(request_of(job_input, tmp_path, cluster=rented, store=store))
    assert not (tmp_path / "out" / "dray.db").exists()
    assert not (tmp_path / "jobs.db").exists()


def test_this_machine_has_to_be_a_node_of_the_cluster(
    job_input: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits for a minute, and says that it found no node info."""
    monkeypatch.setattr("dray.cluster.member.START_SECONDS", 0.0)
    with pytest.raises(ConfigError) as refused:
        preflight(request_of(job_input, tmp_path, cluster=address))
    told = str(refused.value)
    assert f"cluster {address}: this machine is no node of it" in told
    assert f"`ray start --address={address} --num-cpus=0 --num-gpus=0`" in told
    assert "`dray cluster submit http://" in told


def test_sqlite_is_refused_where_the_stable_node_is_elsewhere(
    job_input: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were taken in before. On the head itself, with the store on its disk, the job runs."""
    host = "elsewhere"
    monkeypatch.setattr("dray.cli.preflight.nodes_joined", lambda address: _nodes(host))
    with pytest.raises(ConfigError, match=r"are 2 machines \(.*elsewhere.*\); use PostgreSQL: --store env:"):
        preflight(request_of(job_input, tmp_path, cluster=address))
    host = socket.gethostname()
    preflight(request_of(job_input, tmp_path, cluster=address))


def _nodes(stable: str) -> list[FoundNode]:
    head = FoundNode(
        node_id="a", address="10.0.0.1", host=stable, head=True, marked=False, draining=False, resources={}
    )
    return [head, replace(head, node_id="b", host="a-spot-node", head=False)]


@pytest.mark.parametrize(
    ("cluster", "advice"), [("local", "sqlite:///jobs.db"), ("10.0.0.5:6379", "a PostgreSQL's URL")]
)
def test_an_output_in_an_object_store_needs_a_store_that_its_cluster_can_share(
    cluster: str, advice: str, job_input: Path, tmp_path: Path
) -> None:
    """SQLite was advised for a cluster, too, which then refuses it."""
    request = request_of(job_input, tmp_path, output="s3://bucket/out", cluster=cluster)
    with pytest.raises(ConfigError, match=rf"name a store as well, for example --store .*{advice}"):
        job_settings(request, NoBlocks())
