"""Python files in the folder where ``dray`` is started, such as those of a downloaded model, do not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dray.cluster import ClusterSettings, open_cluster
from tests.support.command import write_requests

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DRAY = Path(sys.executable).parent / "dray"
MODEL = Path(__file__).parents[3] / "examples/tickets/model"
LEAVES_A_MARK = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()
raise ImportError("of the current folder")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With rows, and with files that have the names of modules of Python's and of others."""
    write_requests(tmp_path / "in.jsonl", 3)
    for name in ("json", "queue", "select", "numpy", "ray", "torch", "uvicorn"):
        (tmp_path / f"{name}.py").write_text(LEAVES_A_MARK)
    return tmp_path


def _dray(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    unset = ("PYTHONPATH", "PREFECT_API_URL")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [DRAY, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert not (folder / "ran").exists(), done.stderr
    return done


def test_a_refused_run_runs_no_file_of_the_folder(folder: Path) -> None:
    done = _dray(folder, "run", "in.jsonl", "--model", ".", "--output", "out")
    assert "no config.json in it" in done.stderr
    assert done.returncode != 0


def test_a_run_answers_its_rows_beside_such_files(folder: Path) -> None:
    """Its head, its server, its shard tasks and its replicas: all processes that a run has."""
    arguments = ("run", "in.jsonl", "--model", "simulated", "--engine", "simulated", "--output", "out")
    done = _dray(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["counts"]["done"] == 3


def test_a_plan_counts_tokens_beside_such_files(folder: Path) -> None:
    done = _dray(folder, "plan", "in.jsonl", "--model", str(MODEL))
    assert "a process that counts tokens ended" not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("chosen", [False, True])
def test_workers_import_from_the_current_folder_where_the_driver_does(
    chosen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that is started as ``python -m my_flow`` has its folder in its path, and so have its workers."""
    import ray

    monkeypatch.chdir(tmp_path)
    kept = [one for one in sys.path if one and Path(one).exists()]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *kept] if chosen else kept)
    cluster = open_cluster(ClusterSettings(num_cpus=1))
    try:
        cluster.start()
        cluster.wait()
        worker = ray._private.worker.global_worker
        found = list(worker.core_worker.get_job_config().py_driver_sys_path)
        assert (str(tmp_path) in found) == chosen
    finally:
        cluster.release()
