"""Open the job: new, or the same one resumed."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dray.job.opening import OpenJob
from dray.job.opening import open_job as open_dray_job
from dray.job.settings import JobSettings


@task(name="open-job", task_run_name="open job", persist_result=False, cache_policy=NO_CACHE)
def open_job(settings: JobSettings, started: float) -> OpenJob:
    """Check settings, model, output and store; create or resume the job; become its driver."""
    job = open_dray_job(settings, started=started)
    logger = get_run_logger()
    if job.resumed:
        logger.info("job %s: resumed, %d rows are finished already", job.job_id, job.skipped)
    else:
        logger.info("job %s: new", job.job_id)
    return job
