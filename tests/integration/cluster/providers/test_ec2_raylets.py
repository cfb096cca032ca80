"""A rented cluster end to end: moto's instances run their user data here, and each is a real raylet."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dray.cluster.providers.ec2 import EC2Cluster
from dray.ports import lasting_port
from dray.store import open_store
from tests.support.command import dray, run_arguments, write_requests
from tests.support.ec2_machines import Ec2Machines
from tests.support.moto_ec2 import MotoEc2
from tests.support.postgres import PostgresServer
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def machines(moto: MotoEc2) -> Iterator[Ec2Machines]:
    with tempfile.TemporaryDirectory(prefix="e-") as folder:  # short: Ray's sockets lie in it
        found = Ec2Machines(moto.endpoint, Path(folder))
        yield found
        found.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """SQLite is refused: the rented head is another machine."""
    with PostgresServer() as found:
        yield found


def settings(moto: MotoEc2, **changes: object) -> EC2Cluster:
    values = {"workers": 2, "minimum": 2, "port": lasting_port(), "python": sys.executable, **changes}
    return moto.settings(**values)


def settings_file(moto: MotoEc2, folder: Path, **changes: object) -> Path:
    """For a cluster of one worker."""
    values = {**moto.values(), "workers": 1, "port": lasting_port(), "python": sys.executable, **changes}
    lines = [f"{key} = {json.dumps(one)}" for key, one in values.items()]
    file = folder / "cluster.toml"
    file.write_text("\n".join(['kind = "ec2"', *lines]))
    return file


@pytest.mark.heavy
def test_a_job_rents_joins_uses_and_releases_a_cluster(
    moto: MotoEc2, machines: Ec2Machines, postgres: PostgresServer, tmp_path: Path
) -> None:
    """The command, its flow in Prefect, replicas on the rented workers, the output file, and nothing left."""
    file = settings_file(moto, tmp_path)
    rows = write_requests(tmp_path / "in.jsonl", 20)
    store = postgres.url(postgres.create_database())
    ended = dray(tmp_path, *run_arguments(rows, tmp_path / "out", "--cluster", str(file), store=store))
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == 20
    assert len((tmp_path / "out/output.jsonl").read_text().splitlines()) == 20
    assert moto.left() == []
    until(lambda: not machines.running())
    with open_store(store, create=False) as opened:
        [replica] = opened.replicas("job")
    gone = {one["InstanceId"]: one for one in moto.instances()}
    [worker] = [name for name in gone if "worker of test-" in machines.console(name)]
    assert replica.node is not None
    assert gone[worker]["InstanceLifecycle"] == "spot"


@pytest.mark.long
def test_a_job_that_grows_rents_a_machine_and_gives_it_back(
    moto: MotoEc2, machines: Ec2Machines, postgres: PostgresServer, tmp_path: Path
) -> None:
    """One worker is too slow for the deadline, so a second one comes; one long row at the end needs one."""
    file = settings_file(moto, tmp_path)
    before = {one["InstanceId"] for one in moto.instances()}
    rows = write_requests(tmp_path / "in.jsonl", 160, max_tokens=4)
    *others, last = rows.read_text().splitlines()
    rows.write_text("\n".join([*others, last.replace('"max_tokens": 4', '"max_tokens": 240')]) + "\n")
    slow = ["--engine-arg", "max_num_seqs=2", "--engine-arg", "seconds_per_token=0.2"]
    limits = ["--replicas", "1:2", "--deadline", "30s", "--shard-rows", "8", "--replica-cpus", "1"]
    limits += ["--order", "input", "--budget", "100"]  # dollars: the nodes' types have prices
    store = postgres.url(postgres.create_database())
    command = run_arguments(rows, tmp_path / "out", "--cluster", str(file), *limits, *slow, store=store)
    ended = dray(tmp_path, *command)
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == 160
    spot = [
        one["InstanceId"]
        for one in moto.instances()
        if one["InstanceId"] not in before and one.get("InstanceLifecycle") == "spot"
    ]
    assert len(spot) == 2
    with open_store(store, create=False) as opened:
        worked = opened.committed_by_replica("job")
    assert len(worked) == 2
    assert min(worked.values()) >= 8
    assert "2 replicas instead of 1" in ended.stderr
    assert "1 replica instead of 2" in ended.stderr
    [given] = [name for name in spot if f"gave back {name}" in ended.stderr]
    assert "is up at" in machines.console(given)
    assert ended.json["cost"]["dollars"] > 0
    assert moto.left() == []
    until(lambda: not machines.running())


@pytest.mark.heavy
def test_a_job_whose_workers_never_join_fails_in_time_and_releases_all(
    moto: MotoEc2, machines: Ec2Machines, postgres: PostgresServer, tmp_path: Path
) -> None:
    """The head comes up and is joined; the one worker is lost before Ray has it."""
    file = settings_file(moto, tmp_path, join_seconds=3)
    rows = write_requests(tmp_path / "in.jsonl", 1)
    store = postgres.url(postgres.create_database())
    over = threading.Event()

    def lose_workers() -> None:
        while not over.wait(0.1):
            lost = [one["InstanceId"] for one in moto.live() if one.get("InstanceLifecycle") == "spot"]
            if lost:
                moto.ec2.terminate_instances(InstanceIds=lost)

    loser = threading.Thread(target=lose_workers)
    loser.start()
    try:
        ended = dray(tmp_path, *run_arguments(rows, tmp_path / "out", "--cluster", str(file), store=store))
    finally:
        over.set()
        loser.join()
    assert ended.code == 1
    assert (
        "0 of at least 1 workers joined Ray in 3 s (machines that are there or coming: none; ended: i-"
        in ended.stderr
    )
    assert "Client.UserInitiatedShutdown" in ended.stderr  # as EC2 says of each
    assert moto.left() == []
    until(lambda: not machines.running())


@pytest.mark.heavy
def test_machines_whose_driver_or_ray_daemon_is_gone_end_themselves(
    moto: MotoEc2, machines: Ec2Machines
) -> None:
    """No sweep runs: each machine reads its own tag, and a worker looks at its own Ray daemon."""
    one = settings(moto, workers=2, minimum=0).open()
    one.start()
    until(lambda: len(machines.running()) == 3)
    worker = next(found for found in moto.live() if found.get("InstanceLifecycle") == "spot")
    name = worker["InstanceId"]
    until(lambda: "is up at" in machines.console(name))
    [raylet] = [
        process.pid
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "raylet"
        and f"--node_ip_address={worker['PrivateIpAddress']}" in (process.info["cmdline"] or ())
    ]
    os.kill(raylet, signal.SIGKILL)
    until(lambda: len(moto.live()) == 2)
    assert "its Ray daemon ended: this machine ends itself" in machines.console(name)
    ids = [found["InstanceId"] for found in moto.live()]
    moto.ec2.create_tags(Resources=ids, Tags=[{"Key": "dray-expires", "Value": str(int(time.time()))}])
    until(lambda: moto.live() == [])
    assert all("dray: expired" in machines.console(name) for name in ids)
    one.release()
    assert moto.left() == []


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_nodes_have_the_variables_that_parameters_hold(moto: MotoEc2, machines: Ec2Machines) -> None:
    value = 'it\'s $HOME "quoted" `echo` \\ and\ntwo lines'
    with _parameter(moto, "/dray/env/word", value):
        one = settings(moto, workers=0, minimum=0, env_parameters={"DRAY_TEST_WORD": "/dray/env/word"}).open()
        one.start()
        [head] = one.nodes()
        until(lambda: "is up at" in machines.console(head.name))
        assert _environments(head.name, "raylet") == [value]
        one.release()
    until(lambda: not machines.running())


@pytest.mark.heavy(one_of=3)
def test_a_parameter_that_cannot_be_read_is_said_on_the_console(moto: MotoEc2, machines: Ec2Machines) -> None:
    one = settings(moto, workers=0, minimum=0, env_parameters={"HF_TOKEN": "/dray/env/none"}).open()
    one.start()
    [head] = one.nodes()
    until(lambda: "could not read" in machines.console(head.name))
    said = machines.console(head.name)
    assert "could not read HF_TOKEN from the parameter /dray/env/none (ParameterNotFound): the inst" in said
    assert "RAY_AUTH_TOKEN" not in said  # which could be read before
    one.release()


@contextmanager
def _parameter(moto: MotoEc2, name: str, value: str) -> Iterator[None]:
    moto.ssm.put_parameter(Name=name, Value=value, Type="SecureString")
    yield
    moto.ssm.delete_parameter(Name=name)


def _environments(instance: str, program: str) -> list[str | None]:
    """The variable as the machine's processes of this name have it."""
    found = []
    for process in psutil.process_iter(["name", "environ"]):
        variables = process.info["environ"] or {}
        if process.info["name"] == program and variables.get("DRAY_TEST_INSTANCE") == instance:
            found.append(variables.get("DRAY_TEST_WORD"))
    return found
