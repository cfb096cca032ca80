"""Open the job: new, or the same one resumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from prefect import get_run_logger, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State

from dray.driver.telling.wording import opened_line
from dray.errors import CancelledError, JobBusyError
from dray.job import current_job
from dray.job.beginning.opening import open_job as open_dray_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from tasks.last_run import cancelled_since, note_run
from tasks.prefect_run import callers, in_deployment, of_deployment
from tasks.settling import step
from tasks.stopping import rest_cancelled

_LOOK_EVERY = 2.0  # seconds
_CLOCKS_APART = 5.0  # seconds by which the store's clock and that of Prefect's server may differ

AUTOMATIC = "AutomaticRetry"
"""The name of the state with which deployments/automations/resume.yaml starts a run again."""


@dataclass(frozen=True, kw_only=True)
class Declined:
    """The run has nothing to do: another drives the job, or it was ``cancelled``; says which, for people."""

    reason: str
    cancelled: bool


@step("open job")
def open_job(settings: JobSettings, started: float, *, resume: bool = False) -> OpenJob | Declined:
    """Check settings, model, output and store; create or resume the job; become its driver.

    One that was cancelled goes on when its user asks for that, by ``resume`` or by a retry, also of a flow
    that calls this one. It is cancelled, too, where its last run was, while that only waited. An automation
    that starts the run again is no such request. A deployment's run whose job is driven by another is
    declined, as on a schedule that is faster than its job.

    Raises:
        JobBusyError: another run drives it, and this one is no deployment's.
    """
    logger = get_run_logger()
    before = current_job.latest()
    try:
        job = _open(settings, started, resume=resume)
    except CancelledError as error:
        if not _is_retried(settings, before, error.at or 0.0):
            return Declined(reason=str(error), cancelled=True)
        job = _open(settings, started, resume=True)
    except JobBusyError as error:
        if not of_deployment():
            raise
        logger.info("%s", error)
        return Declined(reason=str(error), cancelled=False)
    at = None if resume else cancelled_since(job)
    if at is not None and not _is_retried(settings, before, at.timestamp()):
        return _cancelled(job, at)
    note_run(job)
    logger.info("%s", opened_line(job))
    return job


def _cancelled(job: OpenJob, at: datetime) -> Declined:
    """Tell the store of a cancel: the user has cancelled the run that drove the job last."""
    rest_cancelled(job, release=True)
    return Declined(
        reason=f"job {job.job_id} was cancelled in Prefect at {at.astimezone(UTC):%Y-%m-%d %H:%M:%S UTC}, "
        f"while its run waited; finished rows are kept, and `{job.command('resume')}` (or --resume) "
        "goes on with it",
        cancelled=True,
    )


def _open(settings: JobSettings, started: float, *, resume: bool) -> OpenJob:
    """Open the job; a run in a deployment waits for the lease of a driver that died: Prefect tries at once.

    Raises:
        JobBusyError: the other driver renews its lease, so it lives.
    """
    left: float | None = None
    while True:
        try:
            return open_dray_job(settings, started=started, resume=resume)
        except JobBusyError as busy:
            if not in_deployment() or (left is not None and busy.left > left):
                raise
            left = busy.left
            time.sleep(_LOOK_EVERY)


def _is_retried(settings: JobSettings, driven: OpenJob | None, cancelled: float) -> bool:
    """Whether a person runs this flow run once more, or one that called it, after the job was ``cancelled``.

    That is in seconds since 1970. A Retry may wait for a worker while its user thinks better of it. If this
    process has ``driven`` the job, its caller's retry came first, and the cancel is heeded.
    """
    run = UUID(str(runtime.flow_run.id))
    runs = [run] if driven is not None and driven.settings == settings else [run, *callers(run)]
    with get_client(sync_client=True) as client:
        return any(_is_run_again(client.read_flow_run_states(one), cancelled) for one in runs)


def _is_run_again(states: Sequence[State], cancelled: float) -> bool:
    """Whether a person started a run again after the job was ``cancelled``, by its states, the oldest first.

    It had ended; one whose container restarts had not. The first state after its last end says who it was.
    """
    ends = [number for number, state in enumerate(states) if state.is_final()]
    again = states[ends[-1] + 1 :] if ends else []
    if not again or again[0].name == AUTOMATIC:
        return False
    return again[0].timestamp.timestamp() > cancelled - _CLOCKS_APART
