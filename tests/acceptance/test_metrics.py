"""A job's figures in what Prometheus reads from the nodes of a cluster that the job has joined."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from dray.driver.telling.metrics import BUSY, COMPLETION, FIGURES, JOB, LOSSES, NOTICES, PROMPT, SECONDS_LEFT
from tests.support.command import CANARY, Command, run_arguments, write_requests
from tests.support.raylets import Raylets

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(300)]

OFTEN = {"RAY_metrics_report_interval_ms": "500"}
ROWS, TOKENS = 120, 8
SETTINGS = ("max_num_seqs=8", "seconds_per_token=0.1")  # 0.8 s a row: about 12 s on one replica
LOOK = """
import json, ray
ray.init(address="auto", logging_level="error")
print(json.dumps([(one["NodeManagerAddress"], one["MetricsExportPort"]) for one in ray.nodes()]))
"""
SAMPLE = re.compile(r"^ray_(dray_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture
def raylets(tmp_path: Path) -> Iterator[Raylets]:
    """Nodes as users have them: with Ray's agents, which serve metrics."""
    found = Raylets(tmp_path / "cluster", 2, OFTEN)
    yield found
    found.stop()


def test_the_nodes_of_a_cluster_serve_a_jobs_figures(raylets: Raylets, tmp_path: Path) -> None:
    pages = _pages(raylets)
    requests = write_requests(tmp_path / "in.jsonl", ROWS, max_tokens=TOKENS)
    assert raylets.settings.address is not None
    more = ("--cluster", raylets.settings.address, "--replicas", "1")
    command = Command(
        arguments=run_arguments(requests, tmp_path / "out", *more, job_id="counted", settings=SETTINGS),
        folder=tmp_path / "run",
        environment={**raylets.environment, **OFTEN},
    )
    seen: dict[tuple[str, str], list[float]] = {}

    def written() -> bool:
        for (name, label), value in _figures(pages).items():
            seen.setdefault((name, label), []).append(value)
        return seen.get(("dray_replica_completion_tokens_total", "replica-0"), [0])[-1] > 0

    command.until(written, what="the figures of a replica")
    assert command.wait().code == 0, command.stderr()
    expected = {one.name + ("_total" if one.total else "") for one in FIGURES if one not in (LOSSES, NOTICES)}
    assert {name for name, _ in seen} | {SECONDS_LEFT.name} == expected
    last = {key: values[-1] for key, values in seen.items()}
    assert last["dray_rows", "done"] + last["dray_rows", "open"] == ROWS
    assert last["dray_rows", "failed"] == 0
    assert last["dray_replicas", "ready"] == 1
    assert last["dray_replica_running_rows", "replica-0"] > 0
    for figure in (BUSY, PROMPT, COMPLETION):
        values = seen[f"{figure.name}_total", "replica-0"]
        assert values == sorted(values)


def _pages(raylets: Raylets) -> list[str]:
    """The addresses that Prometheus would read."""
    environment = {**os.environ, **raylets.environment, "RAY_ADDRESS": raylets.settings.address or ""}
    look = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, stdout=subprocess.PIPE, check=True, timeout=60
    )
    return [f"http://{host}:{port}/metrics" for host, port in json.loads(look.stdout.splitlines()[-1])]


def _figures(pages: Sequence[str]) -> dict[tuple[str, str], float]:
    """dray's figures of the job by name and label: each stands on one node alone, without a prompt."""
    found: dict[tuple[str, str], float] = {}
    for page in pages:
        with urlopen(page, timeout=10) as answer:
            text = answer.read().decode()
        assert CANARY not in text
        for name, labels, value in SAMPLE.findall(text):
            known = dict(LABEL.findall(labels))
            assert known[JOB] == "counted"
            key = (name, next((known[one] for one in ("state", "replica", "cause") if one in known), ""))
            assert key not in found
            found[key] = float(value)
    return found
