"""Runs on nodes that have dray's wheel alone, and on a cluster where one has no dray at all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from tests.support.bare_nodes import bare, without_dray
from tests.support.command import dray, run_arguments, write_requests
from tests.support.raylets import Raylets

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

ROWS = 20

SCRIPT = f"""
import sys

from prefect import flow, task

import hooks
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions


@task
def answer(requests, output, cluster):
    inner = batch_inference.with_options(on_completion=[hooks.done])
    return inner(
        input=requests, model="m", output=output, cluster=cluster, engine=EngineOptions(name="simulated")
    )


@flow
def of_user():
    result = answer(*sys.argv[1:])
    assert result.counts["done"] == {ROWS}, result


of_user()
"""


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    with tempfile.TemporaryDirectory(prefix="b-") as folder:  # short: Ray's sockets lie in it
        found = Raylets(Path(folder) / "r", 2, bare(Path(folder) / "site"))
        yield found
        found.stop()


def test_a_users_own_flow_runs_its_job_on_nodes_that_have_the_wheel_alone(
    raylets: Raylets, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text("def done(flow, run, state):\n    print('hook heard', state.type)\n")
    (tmp_path / "own.py").write_text(SCRIPT)
    requests = write_requests(tmp_path / "requests.jsonl", ROWS)
    ran = subprocess.run(
        [sys.executable, "own.py", str(requests), str(tmp_path / "out"), str(raylets.settings.address)],
        cwd=tmp_path,
        env={**os.environ, **raylets.environment, "PREFECT_API_URL": PREFECT_API_URL.value()},
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said[-5000:]
    assert "hook heard" in said
    assert "worker process died" not in said
    assert len((tmp_path / "out/output.jsonl").read_text().splitlines()) == ROWS


def test_a_node_without_dray_is_named_and_the_others_do_the_job(raylets: Raylets, tmp_path: Path) -> None:
    """Five replicas: the four processors of the other nodes do not hold them all."""
    raylets.add(without_dray(raylets.folder / "none"))
    requests = write_requests(tmp_path / "requests.jsonl", ROWS)
    where = ["--cluster", str(raylets.settings.address), "--replicas", "5"]
    ended = dray(
        tmp_path, *run_arguments(requests, tmp_path / "out", *where), environment=raylets.environment
    )
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == ROWS
    why = f"(node {socket.gethostname()}: ModuleNotFoundError: No module named 'dray')"
    told = f"its node cannot import what the driver has {why}"
    assert f"lost: ENGINE_CRASH: {told}" in ended.stderr
    assert ended.stderr.count(told) <= 2  # no replica came to its two processors for a second time
