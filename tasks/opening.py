"""Open the job: new, or the same one resumed."""

from __future__ import annotations

from prefect import get_run_logger, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client

from dray.errors import CancelledError
from dray.job.opening import OpenJob
from dray.job.opening import open_job as open_dray_job
from dray.job.settings import JobSettings


@task(name="open-job", task_run_name="open job", persist_result=False, cache_policy=NO_CACHE)
def open_job(settings: JobSettings, started: float, *, resume: bool = False) -> OpenJob:
    """Check settings, model, output and store; create or resume the job; become its driver.

    Raises:
        CancelledError: it was cancelled, and nobody asked to go on: neither by ``resume`` nor by a retry.
    """
    try:
        job = open_dray_job(settings, started=started, resume=resume)
    except CancelledError:
        if not _is_retried():
            raise
        job = open_dray_job(settings, started=started, resume=True)
    logger = get_run_logger()
    if job.resumed:
        logger.info("job %s: resumed, %d rows are finished already", job.job_id, job.skipped)
    else:
        logger.info("job %s: new", job.job_id)
    return job


def _is_retried() -> bool:
    """Whether a person runs this flow run once more: it had ended. One whose container restarts had not."""
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(runtime.flow_run.id)
    return any(state.is_final() for state in states)
