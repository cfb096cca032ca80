"""Heed what people ask of a run in Prefect's UI, from its first task to its last."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from prefect import get_run_logger
from prefect.exceptions import Pause

from dray.driver.outage import SHORT_PATIENCE
from dray.errors import FencedError, JobPausedError, StoreError
from dray.job.cancelling import cancel
from dray.job.open_job import OpenJob, reopen
from dray.store import JobState
from tasks.prefect_run import Wish, of_deployment, state_of_run, suspension, wish
from tasks.stopping import CANCELLED, NOT_TAKEN, STOP_SECONDS

ASK_EVERY = 5.0  # seconds; without a Prefect worker, a run learns only by asking that it was cancelled
_TICK = 0.5

SUSPENDED = "suspended in Prefect"


@dataclass
class AskedOfRun:
    """What was ``asked`` of the run, and the ``wish`` that the store has taken."""

    wish: Wish | None = None
    asked: Wish | None = None


@contextmanager
def heeding(job: OpenJob) -> Iterator[AskedOfRun]:
    """Pass a cancel or a suspension on to the store, whose word everything in the job obeys.

    In a thread of its own: a call to Prefect's API may take minutes when that is away.
    """
    over, heard = threading.Event(), AskedOfRun()
    run = contextvars.copy_context().run  # Prefect knows by it which run this is
    thread = threading.Thread(target=run, args=(_heed, job, over, heard), name="dray-heeding", daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join(_TICK)
        if heard.asked is Wish.CANCEL and heard.wish is not Wish.CANCEL:
            _cancel_ended(job)


def suspended(job: OpenJob) -> BaseException:
    """What ends a run whose job was paused in Prefect: its state, or that of its caller, is set already."""
    state = suspension()  # of a deployment's run: this one, or one above, whose Resume calls this flow again
    if state is None and not of_deployment():  # nothing would start it again
        return JobPausedError(f"{SUSPENDED}; `{job.command('resume')}` goes on")
    get_run_logger().info(
        "job %s is paused; finished rows are kept, resume the suspended run to go on", job.job_id
    )
    with suppress(Exception):  # Prefect's API; the state is for the run's last line in its log
        state = state or state_of_run()
    return Pause(state=state)


def _heed(job: OpenJob, over: threading.Event, heard: AskedOfRun) -> None:
    logger = get_run_logger()
    asked = time.monotonic()
    found: Wish | None = None
    while not over.wait(_TICK):
        if found is None and suspension() is not None:
            found = Wish.SUSPEND
        if found is not Wish.CANCEL and time.monotonic() - asked > ASK_EVERY:
            found = _asked() or found  # a cancel may follow a suspension
            asked = time.monotonic()
        heard.asked = found
        if found is None or found is heard.wish:
            continue
        try:
            taken = _tell(job, found)
        except FencedError:
            heard.wish = found  # another driver has the job: there is nothing to pass on
            return
        except StoreError as error:
            logger.warning("the store does not take the %s yet: %s", found.value, type(error).__name__)
            continue
        came_to = "finished rows are kept" if taken else "too late, the job has its answers"
        logger.info("%s requested in Prefect: %s", found.value, came_to)
        heard.wish = found


def _cancel_ended(job: OpenJob) -> None:
    """The run has ended before the store took the cancel: the next run of the job would go on with it."""
    try:
        cancel(job, seconds=STOP_SECONDS)
    except FencedError:
        return
    except StoreError as error:
        get_run_logger().warning(NOT_TAKEN, job.job_id, type(error).__name__, job.job_id)


def _asked() -> Wish | None:
    try:
        return wish()
    except Exception:  # noqa: BLE001  Prefect's API being away must not stop the job
        return None


def _tell(job: OpenJob, wish: Wish) -> bool:
    """Tell the store; whether the wish came before the job had its answers."""
    with reopen(job, patience=SHORT_PATIENCE) as store:
        if wish is Wish.CANCEL:
            store.request_cancel(job.job_id, by=job.lease)
            state = store.get_job(job.job_id).state
            if state is JobState.PAUSED:  # its run was suspended: no shard is left to end it as cancelled
                store.set_job_state(job.lease, JobState.CANCELLED, reason=CANCELLED)
            return not state.answered
        return store.pause_job(job.lease, reason=SUSPENDED) or not _is_done(store.get_job(job.job_id).state)


def _is_done(state: JobState) -> bool:
    """Whether the job has its answers, also where it still writes them."""
    return state.answered or state is JobState.FINALIZING
