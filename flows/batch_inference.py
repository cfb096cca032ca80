"""The product: batch inference from requests to results, as one Prefect flow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State

from dray.cluster import ClusterSettings
from dray.driver.events import Observer
from dray.driver.telling.observers import ListenersObserver, LogObserver
from dray.driver.weights_watch import prefetched_weights
from dray.driver.whole_job import Parts, Run, end_state
from dray.errors import CancelledError
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.result import JobResult
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.checks import check_arguments
from dray.job.options.dated import dated
from dray.job.options.resolving import cluster_settings, job_settings
from dray.job.options.spelling import as_parameters, in_parameters
from dray.store import JobState
from flows.naming import named, named_input
from flows.own_server import with_own_server
from flows.parameters import JobRequest, parameters_of
from flows.resolving import PrefectBlocks
from tasks.alone import alone
from tasks.blocking import warn_of_loop
from tasks.cluster import cluster_of
from tasks.console import outlive_readers
from tasks.failing import driving
from tasks.finalise import finalise
from tasks.flushing import flush_prefect
from tasks.heeding import heeding, suspended
from tasks.observing import PrefectObserver
from tasks.opening import Declined, open_job
from tasks.prefect_run import in_own_run, scheduled_time
from tasks.progress_artifact import ProgressArtifact
from tasks.refusals import log_refusals_briefly
from tasks.shard_executor import executor_for
from tasks.steps import STEPS
from tasks.stopping import stoppable
from tasks.telling import (
    declined_state,
    delivered,
    finish_cancelled_run,
    finish_run,
    report_lifecycle,
    suspended_with_caller,
)

__all__ = ["batch_inference", "flush_prefect"]


def _run_name() -> str:
    """``JOB on MODEL``: what the list of flow runs shows.

    Two parts of a path: its last one alone is often just ``model`` or ``requests.jsonl``.
    """
    given: dict[str, Any] = runtime.flow_run.parameters
    job = dated(given.get("job_id") or named_input(given, 2), scheduled_time())
    return f"{job} on {named(given['model'], 2)}"


@with_own_server
@flow(
    name="batch-inference",
    flow_run_name=_run_name,
    retries=0,  # whatever Prefect's settings say: each try of a whole job rents its cluster anew
    persist_result=False,
    validate_parameters=True,
)
@parameters_of(JobRequest)
def batch_inference(*values: Any, **options: Any) -> JobResult:
    """Run every request of the input through the model, once, and keep each result in SQL.

    Running it again with the same parameters resumes the job, or writes its outputs again. One that was
    cancelled goes on with resume, or when its flow run is retried. Its parameters are the fields of
    :class:`JobRequest`, in their order, by position or by name.
    """
    started = time.time()
    with in_own_run(), suspended_with_caller():
        warn_of_loop()
        log_refusals_briefly()
        outlive_readers()
        with in_parameters(JobRequest):
            request = JobRequest.of(*values, **options).dated(scheduled_time())
            with alone():
                # Of a state, which is for Prefect, its caller gets the result or the error.
                return cast("JobResult", _run(request, started))


def _run(request: JobRequest, started: float) -> JobResult | State:
    settings = job_settings(request, PrefectBlocks())
    where = cluster_settings(request.cluster, PrefectBlocks())
    check_arguments(settings, local=where.local)
    where = where.for_engine(settings.engine_arguments)
    job = open_job(settings, started, resume=request.resume)
    if isinstance(job, Declined):
        return declined_state(job)
    timeline = Timeline(job.started, job.clock)
    with report_lifecycle(job), heeding(job) as heard, ProgressArtifact(job.job_id) as artifact:
        observers: list[Observer] = [
            LogObserver(get_run_logger(), partial(as_parameters, form=JobRequest)),
            ListenersObserver(),
            PrefectObserver(job.job_id, artifact),
        ]
        try:
            with driving(job, heard):
                accounts = _answer_rows(job, where, timeline, observers)
                result = finalise(job, timeline, accounts, _end_state(job))
        except CancelledError as error:  # before there was anything to write
            return delivered(job, finish_cancelled_run(job, str(error)))
        return delivered(job, finish_run(job, result))


def _answer_rows(
    job: OpenJob, where: ClusterSettings, timeline: Timeline, observers: Sequence[Observer]
) -> list[ReplicaAccount]:
    """The driver's run, with Prefect's tasks for its steps and its shards."""
    with cluster_of(job, where) as cluster, prefetched_weights(job, where) as prefetched:
        parts = Parts(
            where=where,
            cluster=cluster,
            executor_of=executor_for,
            observers=observers,
            steps=STEPS,
        )
        return stoppable(job, Run(job, timeline, parts, prefetched).answer_rows, cluster.check)


def _end_state(job: OpenJob) -> JobState:
    state, logger = end_state(job), get_run_logger()
    if state is JobState.PAUSED:
        raise suspended(job)
    if state is JobState.CANCELLED:
        logger.info("job %s: stopped; `%s` goes on", job.job_id, job.command("resume"))
    elif state is JobState.EXPIRED:
        logger.info("job %s: its time is over; what was unfinished has error rows", job.job_id)
    return state


if __name__ == "__main__":
    batch_inference.serve(name="batch-inference")
