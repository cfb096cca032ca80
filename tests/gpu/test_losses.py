"""A replica, then its engine's core, are killed while they hold the GPU: no row is lost, no memory kept.

Run with ``pytest -m gpu tests/gpu/test_losses.py``. Weights are made up; a run takes some minutes, since
an engine starts three times. No GPU has run this yet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.command import Command, committed, run_arguments, write_requests
from tests.support.shaped_model import SHAPES, write_shaped_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ROWS = 8000
SETTINGS = (
    "load_format=dummy",
    "max_model_len=1024",
    "max_num_seqs=256",
    "enforce_eager=true",
    "engine_core=apart",
)


def test_a_killed_replica_and_a_killed_core_lose_no_row(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    model = write_shaped_model(tmp_path / "model", SHAPES["tiny"])
    inputs = write_requests(tmp_path / "in.jsonl", ROWS, max_tokens=64, temperature=0, ignore_eos=True)
    taken = _taken_mib()
    arguments = run_arguments(inputs, tmp_path / "out", engine="vllm", model=str(model), settings=SETTINGS)
    run = Command(arguments=arguments, folder=tmp_path / "command", environment={"DRAY_NO_WAIT": "1"})
    for part, title in ((0.15, "Replica"), (0.5, "vllm_adapter.core.process")):
        run.until(lambda part=part: committed(tmp_path / "out") >= part * ROWS, what=f"{part} of the rows")  # type: ignore[misc]
        os.kill(_found(run, title), signal.SIGKILL)
    ended = run.wait(400)
    assert ended.code == 0, ended.stderr[-6000:]
    assert ended.json["counts"]["done"] == ROWS
    ids = [json.loads(line)["custom_id"] for line in (tmp_path / "out/output.jsonl").open()]
    assert sorted(ids) == sorted(f"row-{n}" for n in range(ROWS))
    run.assert_nothing_left()
    if not _asked("compute-apps", "pid"):  # else other tests have the rest
        assert _free_again(taken), f"{_taken_mib()} MiB of the GPU are taken, {taken} before"


def _found(run: Command, title: str) -> int:
    """The process of the replica (Ray gives it its title), or of the core under it."""
    for pid in run.note_processes():
        command = " ".join(psutil.Process(pid).cmdline()) if psutil.pid_exists(pid) else ""
        if title in command and (title != "Replica" or command.startswith("ray::")):
            return pid
    raise AssertionError(f"no process {title}: {run.note_processes()}")


def _free_again(taken: int) -> bool:
    deadline = time.monotonic() + 20
    while _taken_mib() > taken + 100 and time.monotonic() < deadline:
        time.sleep(0.5)
    return _taken_mib() <= taken + 100


def _taken_mib() -> int:
    return sum(_asked("gpu", "memory.used"))


def _asked(what: str, field: str) -> list[int]:
    command = ["nvidia-smi", f"--query-{what}={field}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except FileNotFoundError:
        return []
    return [int(line) for line in said.split()]
