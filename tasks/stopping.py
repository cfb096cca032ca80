"""Let a cancel in Prefect's UI end a job in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TypeVar

from prefect import get_run_logger
from prefect.exceptions import TerminationSignal

from dray.driver.outage import SHORT_PATIENCE
from dray.errors import DrayError, FencedError, StoreError
from dray.job.cancelling import cancel
from dray.job.open_job import OpenJob, reopen
from dray.job.watched import start_in_thread, wait_watching
from dray.store import JobState
from dray.store.store import PATIENCE
from tasks.prefect_run import is_cancelled

STOP_SECONDS = 15.0
"""For the store to take a cancel, shards to stop and replicas to end.

Prefect's worker sends SIGKILL 30 s after its SIGTERM.
"""

NOT_TAKEN = "job %s: the store does not take the cancel (%s); when it is back, `dray cancel %s` does"

_LEAST_SECONDS = 5.0  # for shards, where the store took the cancel late

CANCELLED = "cancelled in Prefect"
"""The reason of a job whose user pressed Cancel on its run's page."""

T = TypeVar("T")


def stoppable(job: OpenJob, work: Callable[[], T], look: Callable[[], None] = lambda: None) -> T:
    """Run ``work`` beside the main thread, and stop it in order when Prefect ends the flow run.

    ``look`` is called once a second. What it raises ends the wait: the work may hang in Ray for good.

    Prefect ends a run by raising in the main thread. Inside a call of Ray's that turns into a SystemError,
    which reads as a failure of the flow. In a wait for a thread it stays a TerminationSignal.

    Ctrl-C and Prefect's ``timeout_seconds`` end the wait, too, while the process lives on. The shards are
    then stopped as well; a second Ctrl-C waits no longer.

    Raises:
        TerminationSignal: Prefect ended the run. If a user cancelled it, the shards have stopped.
        BaseException: what else ended the wait; the shards have stopped.
    """
    future = start_in_thread(work)
    try:
        return wait_watching(future, look)
    except TerminationSignal:
        disarm_ray()
        if is_cancelled():
            _cancel(job, future)
        raise
    except BaseException as error:
        if not isinstance(error, DrayError) and not future.done():
            _stop(job, future, for_good=False)
        raise


def disarm_ray() -> None:
    """Call off the SIGABRT that Ray schedules for 3 s after a SIGTERM, which it takes for a failure.

    In a process connected to a cluster, Ray's core puts a handler of its own (absl's) before Python's.
    Only upon a TerminationSignal: a process has one such timer, which Prefect sets for ``timeout_seconds``.
    """
    signal.alarm(0)


def _cancel(job: OpenJob, future: Future[T]) -> None:
    """Cancel the job for good, and say so before the cluster ends: SIGKILL may come first."""
    if _stop(job, future, for_good=True):
        rest_cancelled(job, patience=SHORT_PATIENCE)


def _stop(job: OpenJob, future: Future[T], *, for_good: bool) -> bool:
    """Cancel the job in the store, which every shard watches, and wait until they have stopped.

    Returns whether the store has taken it.
    """
    until = time.monotonic() + STOP_SECONDS
    try:
        cancel(job, seconds=STOP_SECONDS, for_good=for_good)
    except FencedError:
        return False  # another driver has the job, and goes on with it
    except StoreError as error:
        get_run_logger().warning(NOT_TAKEN, job.job_id, type(error).__name__, job.job_id)
        return False
    with suppress(FutureTimeoutError):  # whatever it still waits for goes with the cluster
        future.exception(timeout=max(_LEAST_SECONDS, until - time.monotonic()))
    return True


def rest_cancelled(
    job: OpenJob,
    *,
    release: bool = False,
    patience: float = PATIENCE,
    for_good: bool = True,
    reason: str = CANCELLED,
) -> None:
    """The store says that the job is cancelled; ``release`` also gives the driver's lease back.

    A store that stays away for ``patience`` seconds, or another driver that has the job, leaves it as it is.
    So does a job that is completed or expired: the cancel came too late.
    """
    with suppress(StoreError), reopen(job, patience=patience) as store:
        store.request_cancel(job.job_id, for_good=for_good, by=job.lease)
        if not store.get_job(job.job_id).state.answered:
            store.set_job_state(job.lease, JobState.CANCELLED, reason=reason)
        if release:
            store.release_job(job.lease)
