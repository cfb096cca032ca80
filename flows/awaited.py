"""The flow for async callers: a job beside their event loop, not on it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from dray.errors import StoreError
from dray.job import driven
from dray.job.finalising import JobResult
from dray.job.opening import OpenJob, reopen
from flows.batch_inference import batch_inference


async def abatch_inference(**parameters: Any) -> JobResult:
    """Await :func:`flows.batch_inference.batch_inference`, whose parameters it takes, in an async program.

    The job runs in a thread of its own, in the caller's context: in an async flow it is a subflow run of it.
    When the awaiting task is cancelled, the job is cancelled in order, its finished rows are kept, and the
    cancellation goes on once it has stopped.

    Raises:
        DrayError: as the flow does.
        CancelledRun: the job was cancelled by somebody else.
    """
    run = _Run(partial(batch_inference, **parameters))
    running = asyncio.ensure_future(run.start())
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        run.cancel()
        with suppress(Exception):  # how it ended is of no interest any more
            await running
        raise
    assert isinstance(result, JobResult)  # a job that was cancelled raises instead
    return result


class _Run:
    """One call of the flow in a thread, and the job that it opens."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._job: OpenJob | None = None
        self._cancelled = False
        self._thread: int | None = None

    async def start(self) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, contextvars.copy_context().run, self._work)

    def cancel(self) -> None:
        """Ask the job to stop; one that is not open yet is asked when it is."""
        self._cancelled = True
        if self._job is None:
            return
        with suppress(StoreError), reopen(self._job) as store:
            store.request_cancel(self._job.job_id)

    def _work(self) -> Any:
        self._thread = threading.get_ident()
        with driven.calling(self._note):
            return self._call()

    def _note(self) -> None:
        """The flow has opened its job, in the thread that calls."""
        if threading.get_ident() != self._thread:
            return  # another run's in this process
        self._job = driven.latest()
        if self._cancelled:
            self.cancel()
