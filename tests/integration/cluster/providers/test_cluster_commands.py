"""``dray cluster``: of EC2, of this machine, and of a cluster that its owner runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dray.cli.app import run_app
from dray.cluster.providers.ec2.provider import EC2Provider
from tests.support.ec2_faults import Faults, refusal, short
from tests.support.moto_ec2 import MotoEc2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ADDRESS = "10.0.0.5:6379"


@pytest.fixture
def file(moto: MotoEc2, tmp_path: Path) -> Path:
    """Settings of a cluster of two workers on moto."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in moto.values().items()]
    written = tmp_path / "cluster.toml"
    written.write_text("\n".join(['kind = "ec2"', *lines, "workers = 2"]))
    return written


@pytest.mark.heavy
def test_a_cluster_of_ec2_is_planned_started_shown_and_ended(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*command: str) -> Any:
        assert run_app(["cluster", *command, str(file), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [one["kind"] for one in told("plan")["objects"]][-1] == "fleet"
    assert len(told("up")["machines"]) == 3
    assert len(told("up", "--workers", "1")["machines"]) == 2
    assert run_app(["cluster", "status", str(file)]) == 0
    assert "ends in 30 min" in capsys.readouterr().out
    assert told("sweep") == {"expired": []}
    assert len(told("down")["released"]) == 5
    assert told("status") == {"machines": []}


def test_what_has_expired_is_swept_and_named(
    moto: MotoEc2, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["cluster", "up", str(file), "--workers", "0"]) == 0
    [head] = [one["InstanceId"] for one in moto.live()]
    moto.ec2.create_tags(Resources=[head], Tags=[{"Key": "dray-expires", "Value": "1"}])
    capsys.readouterr()
    assert run_app(["cluster", "sweep", str(file)]) == 0
    assert capsys.readouterr().out == f"released instance {head} of test\n"
    assert moto.live() == []
    assert run_app(["cluster", "down", str(file)]) == 0  # its template and token had not expired


def test_a_plan_is_for_a_person_to_read(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["cluster", "plan", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "launch template: dray-test-head-on-demand" in lines
    assert "    - InstanceType: m7i.xlarge" not in lines
    assert any(line.startswith("        - InstanceType m7i.xlarge, SubnetId subnet-") for line in lines)
    assert any("dollars_per_million_tokens" in line for line in lines)
    assert "      #!/bin/bash" in lines  # the script as it is, and not in base64
    assert any(line.strip() == "dray-cluster: test" for line in lines)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("operation", "answer", "code", "said"),
    [
        ("CreateFleet", refusal("UnauthorizedOperation"), 2, "may not ec2:CreateFleet"),
        ("DescribeInstances", refusal("ExpiredToken"), 2, "the credentials have expired"),
        ("CreateFleet", short("InsufficientInstanceCapacity"), 1, "no head can be had"),
        ("CreateFleet", short("VcpuLimitExceeded"), 1, "the account's quota is used up"),
        ("DescribeSubnets", refusal("InvalidSubnetID.NotFound", "subnet-1"), 2, "name subnets of us-east-1"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    file: Path,
    operation: str,
    answer: dict[str, Any],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty = partial(EC2Provider, make_api=Faults().answer(operation, answer).api)
    monkeypatch.setattr("dray.cluster.providers.ec2.provider.EC2Provider", faulty)
    assert run_app(["cluster", "up", str(file)]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("dray: ")
    assert said in line


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["plan", "local"], 0, "authentication: token"),
        (["plan", ADDRESS], 0, f"nothing is created: dray joins the Ray cluster at {ADDRESS}, and does not"),
        (["up", ADDRESS, "--workers", "2"], 2, f"--workers: {ADDRESS} is no file of settings"),
        (["down", "local"], 2, "nothing to end: Ray of this machine ends with the process that started it"),
        (["down", ADDRESS], 2, f"dray did not start the Ray cluster at {ADDRESS}, and its owner ends it"),
        (["status", "local"], 2, "each job starts its own; name the address that `dray cluster up local`"),
        (["sweep", "local"], 0, "nothing expires: Ray of this machine ends with the process"),
        (["sweep", ADDRESS], 0, "nothing expires: dray did not start the Ray cluster"),
        (["submit", "local", "--", "run", "x"], 2, "the Ray of this machine takes no jobs"),
        (["plan", "block:dray-ec2-ray-cluster/gpus"], 2, "reads no blocks of Prefect; name a TOML file"),
        (["plan", "none.toml"], 2, "none.toml: cannot be read"),
    ],
)
def test_of_a_cluster_that_is_not_rented_the_commands_say_what_they_do(
    command: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["cluster", *command]) == code
    told = capsys.readouterr()
    assert said in (told.err if code else told.out)


def test_a_wrong_field_is_named_with_the_nearest(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('kind = "ec2"\nregoin = "x"')
    assert run_app(["cluster", "plan", str(file)]) == 2
    assert "no field 'regoin'; the nearest is region" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_cluster_of_this_machine_is_there_until_ctrl_c(tmp_path: Path) -> None:
    """Others join it by its address; of an address, ``up`` and ``status`` show the nodes."""
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    command = [sys.executable, "-m", "dray.cli", "cluster"]
    held = subprocess.Popen(
        [*command, "up", "local", "--json"], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert held.stdout is not None
        address = json.loads(held.stdout.readline())["address"]
        for name in ("status", "up"):
            shown = subprocess.run(
                [*command, name, address, "--json"],
                capture_output=True,
                text=True,
                env=environment,
                check=True,
            )
            [machine] = json.loads(shown.stdout)["machines"]
            assert (machine["head"], machine["market"]) == (True, "own")
        assert f"nothing is started: dray joins the Ray cluster at {address}" in shown.stderr
    finally:
        held.send_signal(signal.SIGINT)
        assert held.wait(60) == 130
