"""The flow in an async program: beside the event loop, and what a plain call on it says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from prefect import flow

from dray.job.ending.result import JobResult
from dray.store import JobState, open_store
from flows.awaited import abatch_inference
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tasks.alone import alone
from tests.support.command import committed, write_requests
from tests.support.cutting_proxy import CuttingProxy
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.heavy]


def parameters(folder: Path, **engine: Any) -> dict[str, Any]:
    requests = write_requests(folder / "requests.jsonl", 40)
    simulated = EngineOptions(name="simulated", arguments=engine)
    return {
        "input": str(requests),
        "model": "m",
        "output": str(folder / "out"),
        "job_id": "job",
        "engine": simulated,
    }


async def ticking(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """What ``work`` gives, and the longest time for which the loop stood still beside it, in seconds."""
    running = asyncio.ensure_future(work)
    longest = 0.0
    while not running.done():
        before = time.monotonic()
        await asyncio.sleep(0.05)
        longest = max(longest, time.monotonic() - before)
    return await running, longest


def test_a_job_is_awaited_and_a_plain_call_says_what_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = parameters(tmp_path, seconds_per_token=0.1, max_num_seqs=8)  # 4 s of inference

    @flow
    async def parent() -> tuple[JobResult, float, JobResult]:
        first, stood_still = await ticking(abatch_inference(**given))
        assert "blocks its caller's event loop" not in caplog.text
        return first, stood_still, batch_inference(**given)  # again: every row is finished

    first, stood_still, again = asyncio.run(parent())
    assert first.state == again.state == "completed"
    assert first.counts["done"] == again.counts["skipped"] == 40
    assert stood_still < first.seconds["inference"]
    assert "blocks its caller's event loop" in caplog.text


def test_a_cancelled_task_stops_its_job_which_the_same_call_goes_on_with(tmp_path: Path) -> None:
    """By a scope of anyio's, such as Prefect's ``timeout_seconds``: it cancels until the task has ended."""
    given = parameters(tmp_path, seconds_per_token=0.3, max_num_seqs=2)

    async def program() -> None:
        with anyio.CancelScope() as scope:
            cancelling = asyncio.create_task(cancel_when_committed(scope))
            await abatch_inference(**given)
        assert scope.cancelled_caught
        await cancelling

    async def cancel_when_committed(scope: anyio.CancelScope) -> None:
        while not committed(tmp_path / "out"):
            await asyncio.sleep(0.1)
        scope.cancel()

    asyncio.run(program())
    with alone():  # the flow's retry begins at once
        pass
    with open_store(f"sqlite:///{tmp_path / 'out' / 'dray.db'}", create=False) as store:
        assert store.get_job("job").state is JobState.CANCELLED
        assert 0 < store.counts("job").done < 40
        store.claim_job("job", "the next driver")  # without ``resume``: CancelledError where it was for good


_CANCELLED_TWICE = """
import asyncio, threading
from flows import awaited

hung = threading.Event()

def hang(**_):
    hung.set()
    threading.Event().wait()

async def program():
    task = asyncio.create_task(awaited.abatch_inference())
    while not hung.is_set():
        await asyncio.sleep(0.01)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.1)
    print("cancelled" if task.cancelled() else "waits", flush=True)

awaited.batch_inference = hang
asyncio.run(program())
"""


def test_a_program_ends_that_cancels_twice_what_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _CANCELLED_TWICE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "cancelled\n", "")


_TERMINATED = """
import asyncio, os, signal, threading, time
from flows import awaited
from prefect.exceptions import TerminationSignal

runs = threading.Event()

def end_late(**_):
    runs.set()
    time.sleep(1)
    print("the job ended", flush=True)

def terminate(number, frame):  # as Prefect does in the process of a run
    raise TerminationSignal(signal=number)

async def program():
    task = asyncio.create_task(awaited.abatch_inference())
    while not runs.is_set():
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await task

awaited.batch_inference = end_late
signal.signal(signal.SIGTERM, terminate)
try:
    asyncio.run(program())
except TerminationSignal:
    print("terminated", flush=True)
"""


def test_a_program_that_is_terminated_ends_after_its_job() -> None:
    """asyncio then cancels every task of the loop, and not only the one that awaits the job."""
    ended = subprocess.run(
        [sys.executable, "-c", _TERMINATED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the job ended\nterminated\n", "")


def test_a_cancel_outlasts_a_store_that_is_away(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away for longer than one call of the store has patience; the loop stays free all the while."""
    given = parameters(tmp_path, seconds_per_token=0.3, max_num_seqs=2) | {"store": "env:AWAITED_STORE"}

    async def program(proxy: CuttingProxy) -> float:
        task = asyncio.create_task(abatch_inference(**given))
        with open_store(postgres_url) as direct:
            while not (direct.find_job("job") and direct.counts("job").done):
                await asyncio.sleep(0.1)
        proxy.refuse()
        proxy.cut()
        task.cancel()
        _, stood_still = await ticking(asyncio.sleep(25))
        assert not task.done()
        proxy.resume()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stood_still

    with CuttingProxy(postgres.port) as proxy:
        through = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        monkeypatch.setenv("AWAITED_STORE", through)
        stood_still = asyncio.run(program(proxy))
    with open_store(postgres_url, create=False) as store:
        assert store.get_job("job").state is JobState.CANCELLED
        assert 0 < store.counts("job").done < 40
    assert stood_still < 10
