"""Open the job: new, or the same one resumed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from prefect import get_run_logger, runtime
from prefect.client.orchestration import get_client

from dray.driver.wording import opened_line
from dray.errors import CancelledError, JobBusyError
from dray.job.opening import OpenJob
from dray.job.opening import open_job as open_dray_job
from dray.job.settings import JobSettings
from tasks.prefect_run import in_deployment, of_deployment
from tasks.settling import step

_LOOK_EVERY = 2.0  # seconds

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

    One that was cancelled goes on when its user asks for that, by ``resume`` or by a retry. An automation
    that starts the run again is no such request. A deployment's run whose job is driven by another is
    declined, as on a schedule that is faster than its job.

    Raises:
        JobBusyError: another run drives it, and this one is no deployment's.
    """
    logger = get_run_logger()
    try:
        job = _open(settings, started, resume=resume)
    except CancelledError as error:
        if not _is_retried():
            return Declined(reason=str(error), cancelled=True)
        job = _open(settings, started, resume=True)
    except JobBusyError as error:
        if not of_deployment():
            raise
        logger.info("%s", error)
        return Declined(reason=str(error), cancelled=False)
    logger.info("%s", opened_line(job))
    return job


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


def _is_retried() -> bool:
    """Whether a person runs this flow run once more: it had ended. One whose container restarts had not.

    The first state after its last end says who started it again.
    """
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(runtime.flow_run.id)  # the oldest first
    ends = [number for number, state in enumerate(states) if state.is_final()]
    again = states[ends[-1] + 1 :] if ends else []
    return bool(again) and again[0].name != AUTOMATIC
