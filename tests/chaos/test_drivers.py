"""Several drivers of one job: one that froze past its lease, two at once; and a driver without Prefect."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dray.job.beginning.opening import DRIVER_TTL
from dray.store import JobState, open_store
from tests.support.chaos import Job
from tests.support.command import Command
from tests.support.prefect_server import PrefectServer, prefect_server

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

ROWS = 400
SETTINGS = ("max_num_seqs=8", "seconds_per_token=0.05")
"""20 rows/s on one replica."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(folder=tmp_path, rows=ROWS, settings=SETTINGS, more=("--shard-rows", "100"))


def files(job: Job) -> dict[str, bytes]:
    """Everything that is in the output folder."""
    return {file.name: file.read_bytes() for file in sorted(job.output.iterdir()) if file.is_file()}


def test_a_driver_that_froze_past_its_lease(job: Job) -> None:
    """Another takes over and finishes; the first one wakes, says so and changes nothing."""
    first = job.start()
    job.until_committed(first, 40)
    frozen = group_of(first)
    signal_all(frozen, signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(DRIVER_TTL + 2)
    figures = job.finished(job.start(), 240)
    took = time.monotonic() - began
    before, counts = files(job), job.committed()
    signal_all(frozen, signal.SIGCONT)
    woken = time.monotonic()
    ended = first.wait(120)
    awake = time.monotonic() - woken
    first.assert_nothing_left(30)
    print(f"frozen: done by another {took:.1f} s later; ended {awake:.1f} s after it woke; {figures}")
    assert ended.code == 1, ended.stderr
    assert "another driver took over" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert files(job) == before
    assert job.committed() == counts
    with open_store(job.store, create=False) as store:
        assert store.get_job("job").state is JobState.COMPLETED


def test_two_drivers_at_once(job: Job) -> None:
    began = time.monotonic()
    runs = [job.start(), job.start()]
    winner, loser = sorted((run.wait(300) for run in runs), key=lambda ended: ended.code)
    for run in runs:
        run.assert_nothing_left(30)
    assert loser.code == 2, loser.stderr
    assert loser.json["error"]["type"] == "JobBusyError"
    assert "is being run by" in loser.json["error"]["message"]
    figures = job.ended_well(winner)
    print(f"two at once: one refused after {loser.seconds:.1f} s, all done after "
          f"{time.monotonic() - began:.1f} s; {figures}")  # fmt: skip
    assert figures.recomputed == 0


@pytest.fixture
def prefect() -> Iterator[PrefectServer]:
    with prefect_server() as found:
        yield found


@pytest.mark.parametrize("seconds", [15, None])
def test_prefect_goes_away(seconds: int | None, job: Job, prefect: PrefectServer) -> None:
    """For a while, or for good: the job is none of its business."""
    patience = {} if seconds is not None else {"PREFECT_CLIENT_MAX_RETRIES": "2"}  # minutes by default
    run = job.start(PREFECT_API_URL=f"{prefect.url}/api", **patience)
    job.until_committed(run, 40)
    prefect.close()
    away = time.monotonic()
    if seconds is not None:
        time.sleep(seconds)
        prefect.__enter__()
    ended = run.wait(300)
    took = time.monotonic() - away
    run.assert_nothing_left(30)
    figures = job.ended_well(ended)
    print(f"Prefect away for {seconds or 'the rest'}: done {took:.1f} s after it went; {figures}")
    assert figures.recomputed == 0


def group_of(run: Command) -> list[psutil.Process]:
    """The driver's process group without Ray's daemons."""
    found = []
    for pid in run.note_processes():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            process = psutil.Process(pid)
            if os.getpgid(pid) == run.process.pid and process.name() not in ("raylet", "gcs_server"):
                found.append(process)
    return found


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
