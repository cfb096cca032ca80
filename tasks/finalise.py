"""Write the outputs and the report."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import get_run_logger

from dray.errors import StoreError
from dray.job.ending.finalising import cancelled_message, finalise_job
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.result import JobResult
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob, reopen
from dray.store import JobState
from tasks.settling import step


@step("finalise")
def finalise(
    job: OpenJob, timeline: Timeline, replicas: Sequence[ReplicaAccount], state: JobState
) -> JobResult:
    """Publish output, errors and report, and give the job back."""
    if state is not JobState.CANCELLED:  # which gets no files
        get_run_logger().info("writing output, errors and report")
    result = finalise_job(job, timeline, replicas, state=state)
    try:
        with reopen(job) as store:
            store.release_job(job.lease)
    except StoreError as error:  # the job is done anyhow
        get_run_logger().warning("the job's lease is left to lapse: %s", type(error).__name__)
    if result.report is None:
        get_run_logger().info(cancelled_message(job))
    else:
        get_run_logger().info("job %s is %s: report at %s", result.job_id, result.state, result.report)
    return result
