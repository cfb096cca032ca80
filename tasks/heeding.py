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

from dray.errors import FencedError, JobPausedError, StoreError
from dray.job.opening import OpenJob, reopen
from tasks.patience import SHORT_PATIENCE
from tasks.prefect_run import Wish, of_deployment, state_of_run, suspension, wish_in

ASK_EVERY = 5.0  # seconds; a run without a Prefect worker is told by nobody that it was cancelled
_TICK = 0.5

SUSPENDED = "suspended in Prefect"


@dataclass
class Heard:
    """What was asked of the run, and passed on to the store."""

    wish: Wish | None = None


@contextmanager
def heeding(job: OpenJob) -> Iterator[Heard]:
    """Pass a cancel or a suspension on to the store, whose word everything in the job obeys.

    In a thread of its own: a call to Prefect's API may take minutes when that is away.
    """
    over, heard = threading.Event(), Heard()
    run = contextvars.copy_context().run  # Prefect knows by it which run this is
    thread = threading.Thread(target=run, args=(_heed, job, over, heard), name="dray-heeding", daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join(_TICK)


def suspended(job: OpenJob) -> BaseException:
    """What ends a run whose job was paused in Prefect: its state there is set already."""
    get_run_logger().info("job %s is paused; finished rows are kept, resume the run to go on", job.job_id)
    if not of_deployment():  # nothing would start it again
        return JobPausedError(f"{SUSPENDED}; `dray resume {job.job_id}` goes on")
    state = suspension()
    with suppress(Exception):  # Prefect's API; the state is for the run's last line in its log
        state = state or state_of_run()
    return Pause(state=state)


def _heed(job: OpenJob, over: threading.Event, heard: Heard) -> None:
    logger = get_run_logger()
    asked = time.monotonic()
    wish: Wish | None = None
    while not over.wait(_TICK):
        if suspension() is not None:
            wish = Wish.SUSPEND
        elif time.monotonic() - asked > ASK_EVERY:
            wish = _asked() or wish
            asked = time.monotonic()
        if wish is None or wish is heard.wish:
            continue
        try:
            _tell(job, wish)
        except FencedError:
            return  # another driver has the job
        except StoreError as error:
            logger.warning("the store does not take the %s yet: %s", wish.value, type(error).__name__)
            continue
        logger.info("%s requested in Prefect: finished rows are kept", wish.value)
        heard.wish = wish


def _asked() -> Wish | None:
    try:
        return wish_in(state_of_run())
    except Exception:  # noqa: BLE001  Prefect's API being away must not stop the job
        return None


def _tell(job: OpenJob, wish: Wish) -> None:
    with reopen(job, patience=SHORT_PATIENCE) as store:
        if wish is Wish.CANCEL:
            store.request_cancel(job.job_id)
        else:
            store.pause_job(job.lease, reason=SUSPENDED)
