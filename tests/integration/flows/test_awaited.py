"""The flow in an async program: beside the event loop, and what a plain call on it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from dray.job.finalising import JobResult
from dray.store import JobState, open_store
from flows.awaited import abatch_inference
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tests.support.command import committed, write_requests

pytestmark = pytest.mark.integration


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


def test_a_cancelled_task_cancels_its_job(tmp_path: Path) -> None:
    given = parameters(tmp_path, seconds_per_token=0.3, max_num_seqs=2)

    async def program() -> None:
        task = asyncio.create_task(abatch_inference(**given))
        while not committed(tmp_path / "out"):
            await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(program())
    with open_store(f"sqlite:///{tmp_path / 'out' / 'dray.db'}", create=False) as store:
        assert store.get_job("job").state is JobState.CANCELLED
        assert 0 < store.counts("job").done < 40
