"""Let a cancel in Prefect's UI end a job in order."""

from __future__ import annotations

import contextvars
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TypeVar

from prefect import get_run_logger, runtime
from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal

from dray.errors import StoreError
from dray.job.opening import OpenJob
from dray.store import JobState, open_store
from tasks.bulletin import LOOK_EVERY as PAGE_LOOK_EVERY
from tasks.bulletin import is_cancelled

STOP_SECONDS = 15.0
"""For shards to stop and replicas to end; Prefect's worker sends SIGKILL 30 s after its SIGTERM."""

_LOOK_EVERY = 1.0

T = TypeVar("T")


def stoppable(job: OpenJob, work: Callable[[], T], look: Callable[[], None] = lambda: None) -> T:
    """Run ``work`` beside the main thread, and stop it in order when Prefect ends the flow run.

    ``look`` is called once a second. What it raises ends the wait: the work may hang in Ray for good.

    Prefect ends a run by raising in the main thread. Inside a call of Ray's that turns into a SystemError,
    which reads as a failure of the flow; waiting for a thread, it stays what it is.

    Raises:
        TerminationSignal: Prefect ended the run. When somebody cancelled it, the job is cancelled too.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()  # Prefect knows by it which run the thread belongs to
    threading.Thread(target=context.run, args=(_fill, future, work), name="dray-job", daemon=True).start()
    try:
        while not wait([future], timeout=_LOOK_EVERY).done:
            look()
        return future.result()
    except TerminationSignal:
        disarm_ray()
        if _cancelled_in_prefect():
            _cancel(job, future)
        raise


class PageCancel:
    """Looks whether the run was cancelled on Prefect's page: without a worker it is told by nobody."""

    def __init__(self, job: OpenJob) -> None:
        self._job = job
        self._looked = time.monotonic()

    def look(self) -> None:
        """Look, every few seconds, and hand a cancel on to the job."""
        if time.monotonic() - self._looked < PAGE_LOOK_EVERY:
            return
        if is_cancelled(runtime.flow_run.id):
            with suppress(StoreError), open_store(self._job.settings.store_url, create=False) as store:
                store.request_cancel(self._job.job_id)
        self._looked = time.monotonic()


def disarm_ray() -> None:
    """Call off the SIGABRT that Ray schedules for 3 s after a SIGTERM, which it takes for a failure.

    In a process connected to a cluster, Ray's core puts a handler of its own (absl's) before Python's.
    """
    signal.alarm(0)


def _fill(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  thread edge: raised where the result is awaited
        future.set_exception(error)


def _cancelled_in_prefect() -> bool:
    """Whether somebody cancelled this flow run; otherwise its machine is being taken away."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(runtime.flow_run.id).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def _cancel(job: OpenJob, future: Future[T]) -> None:
    """Cancel the job in the store, which every shard watches, and wait until they have stopped."""
    logger = get_run_logger()
    try:
        with open_store(job.settings.store_url, create=False) as store:
            store.request_cancel(job.job_id)
            _wait(future)
            store.set_job_state(job.lease, JobState.CANCELLED, reason="cancelled in Prefect")
            store.release_job(job.lease)
            counts = store.counts(job.job_id)
    except StoreError as error:
        logger.warning("job %s: the store does not take the cancel: %s", job.job_id, type(error).__name__)
        return
    logger.info("job %s: cancelled with %s of %s rows finished, all kept; `dray resume` goes on",
                job.job_id, f"{counts.done + counts.failed:,}", f"{counts.total:,}")  # fmt: skip


def _wait(future: Future[T]) -> None:
    with suppress(FutureTimeoutError):  # whatever it still waits for goes with the cluster
        future.exception(timeout=STOP_SECONDS)
