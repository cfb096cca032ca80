"""Every benchmark starts, measures dray in its smallest form, and reports; its figures are not judged.

Other contestants are left out: what of them is in this repository is held by mypy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.workload import MADE

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
MEASURED = {
    "store": {"sqlite", "postgresql"},
    "ordering": {"10000 rows"},
    "order": {"prefixes, auto"},
    "fields": {"moved"},
    "tuning": {"tickets"},
    "deadline": {"dray", "uniform progress", "greedy spot", "on demand"},
    "cost": {"Llama 3.1 8B, 80% shared, on demand, GPT-4o mini"},
    "planning": {"10000 rows", "tokenized"},
    "start": {"plain", "with Prefect"},
    "idle": {"usual run", "python"},
    "scale": {"sqlite"},
    "embeddings": {"100 rows"},
    "scale_up": {"cold"},
    "places": {"20 replicas"},
    "fleet": {"4 replicas"},
    "device": {"replica"},
    "gpu": {"replica"},
    "batching": {"clock, constant", "clock, lognormal 0.9"},
    "forecast": {"12 ms a step"},
    "throughput": {"dray"},
    "images": {"replica"},
    "scores": {"replica"},
    "unequal_nodes": {"shards of 16"},
    "weights": {"dray", "dray-load"},
    "weights_s3": {"clean"},
    "interruptions": {"dray"},
}
LIGHT = {"deadline", "cost", "places"}
"""The others start engines, clusters or servers of their own, and are heavy."""


@pytest.fixture(scope="module")
def prefect_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Prefect makes it at its first start on a machine, which a benchmark need not wait for here."""
    home = tmp_path_factory.mktemp("prefect")
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(
        command, env={**os.environ, "PREFECT_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL
    )
    return home / "prefect.db"


def test_each_benchmark_is_here() -> None:
    assert {*benchmarks.NAMES, "interruptions"} == MEASURED.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in LIGHT else [pytest.mark.heavy]) for name in MEASURED]
)
def test_a_benchmark_runs_to_its_end(
    name: str,
    tmp_path: Path,
    prefect_database: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MADE, str(prefect_database))
    if name in ("batching", "forecast", "throughput", "device", "gpu", "tuning", "scale_up"):
        pytest.importorskip("vllm")
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--smoke"]
    process = subprocess.Popen(
        [*command, "--json", str(figures), "--folder", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # it ends what it measures
            process.wait(30)
    assert process.returncode == 0, said[-3000:]
    report: dict[str, Any] = json.loads(figures.read_bytes())
    assert report["failures"] == []
    named = {row.get("store" if name == "scale" else "name") for row in report["raw"]}
    assert named >= MEASURED[name]
    assert all(table["rows"] for table in report["tables"])
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
