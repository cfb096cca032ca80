"""The flow for async callers: a job beside their event loop, not on it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from dray.errors import FencedError, StoreError
from dray.job import current_job
from dray.job.cancelling import CANCEL_SECONDS, cancel
from dray.job.ending.result import JobResult
from dray.job.open_job import OpenJob
from dray.job.watched import start_in_thread
from flows.batch_inference import batch_inference
from flows.parameters import JobRequest, parameters_of
from tasks.prefect_run import is_cancelled
from tasks.stopping import NOT_TAKEN

_logger = logging.getLogger(__name__)


@parameters_of(JobRequest)
async def abatch_inference(*values: Any, **options: Any) -> JobResult:
    """Await :func:`flows.batch_inference.batch_inference`, whose parameters it takes, in an async program.

    The job runs in a thread of its own, in the caller's context: in an async flow it is a subflow run of it.
    When the awaiting task is cancelled, the job is stopped in order, its finished rows are kept, and the
    cancellation goes on once it has stopped. Ctrl-C and a signal to the process cancel the task, too: so the
    same call again goes on with the job, unless a user cancelled the caller's flow run in Prefect. A store
    that is away is asked until it is back, for half an hour at most; a second cancellation waits no longer.
    A scope of anyio's, such as the flow's ``timeout_seconds``, is one cancellation. What another driver has
    taken meanwhile goes on there.

    Raises:
        DrayError: as the flow does; ConfigError where another job runs in this process.
        CancelledRun: the job was cancelled, and not by the awaiting task.
    """
    run = _Run(partial(batch_inference, *values, **options))
    running = run.start()
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        run.cancel()
        # anyio, which Prefect's ``timeout_seconds`` uses, cancels anew at each turn of the loop.
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            with suppress(Exception):  # how it ended is of no interest any more
                await running
            await run.asked()
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
        self._guard = threading.Lock()
        self._caller = contextvars.copy_context()  # Prefect knows by it which run awaits the job
        self._asked: Future[None] | None = None

    def start(self) -> asyncio.Future[Any]:
        """Run the flow in a daemon thread: asyncio and Python wait at their end for those of an executor."""
        return asyncio.wrap_future(start_in_thread(self._work))

    def cancel(self) -> None:
        """Ask the job to stop, beside the loop; one that is not open yet is asked when it is."""
        with self._guard:
            self._cancelled = True
            if self._job is None or self._asked is not None:
                return
            self._asked = Future()
            self._asked.set_running_or_notify_cancel()  # the loop may stop waiting; the thread goes on
        call = self._caller.copy().run
        threading.Thread(target=call, args=(self._ask, self._job, self._asked), daemon=True).start()

    async def asked(self) -> None:
        """Wait until the store has taken the cancel, or takes it no more."""
        if self._asked is not None:
            await asyncio.wrap_future(self._asked)

    @staticmethod
    def _ask(job: OpenJob, asked: Future[None]) -> None:
        try:
            cancel(job, for_good=is_cancelled())
        except FencedError as error:
            _logger.info("%s", error)
        except StoreError as error:
            _logger.warning(NOT_TAKEN, job.job_id, type(error).__name__, job.job_id)
        finally:
            asked.set_result(None)

    def _work(self) -> Any:
        self._thread = threading.get_ident()
        with current_job.calling(self._note):
            return self._call()

    def _note(self, job: OpenJob) -> None:
        """The flow has opened its job, in the thread that calls."""
        if threading.get_ident() != self._thread:
            return  # another run's in this process
        with self._guard:
            self._job = job
        if self._cancelled:
            self.cancel()
