"""The product: batch inference from requests to results, as one Prefect flow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from dray.cluster import ClusterSettings, ReplicaPool
from dray.cluster.placing import default_replicas, expected_replicas
from dray.engine import EngineSpec
from dray.engine.declared import refuse_arguments
from dray.errors import CancelledError, ExpiredError
from dray.job.deadline import orders_of
from dray.job.expiring import expire
from dray.job.finalising import JobResult, ReplicaAccount, cancelled_message
from dray.job.heeding import Heed
from dray.job.ingesting import engine_kind, open_shards
from dray.job.ledger import JobLedger
from dray.job.opening import OpenJob
from dray.job.settings import JobSettings
from dray.job.timeline import Timeline
from dray.job.weighing import Weighing
from dray.store import JobState, Shard, open_store
from dray.weights import LocalModel
from flows.parameters import EngineOptions, RowOptions, SamplingOptions
from flows.resolving import cluster_settings, job_settings
from tasks.bulletin import Bulletin
from tasks.cluster import RunningCluster, cluster_of
from tasks.failing import driving
from tasks.finalise import finalise
from tasks.flushing import flush_prefect
from tasks.infer import ShardTasks, bound_tasks
from tasks.ingest import ingest
from tasks.monitor import Monitor
from tasks.noticing import Noticing
from tasks.opening import open_job
from tasks.replicas import note_starts, start_replicas
from tasks.stopping import PageCancel, stoppable
from tasks.weights import AGENT_SECONDS, early_weights, weights_on

__all__ = ["batch_inference", "flush_prefect"]


def _run_name() -> str:
    """``JOB on MODEL``: what the list of flow runs shows."""
    given: dict[str, Any] = runtime.flow_run.parameters
    inputs = given["input"]
    first = inputs if isinstance(inputs, str) else inputs[0]
    return f"{given.get('job_id') or _tail(first)} on {_tail(given['model'])}"


def _tail(path: str) -> str:
    """The last two parts of a path: its last one alone is often just ``model`` or ``requests.jsonl``."""
    return "/".join(Path(path).parts[-2:])


@flow(name="batch-inference", flow_run_name=_run_name, persist_result=False, validate_parameters=True)
def batch_inference(
    input: str | list[str],  # noqa: A002  the user's word for it
    model: str,
    output: str,
    job_id: str | None = None,
    rows: RowOptions = RowOptions(),  # noqa: B008  pydantic copies defaults
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008
    engine: EngineOptions = EngineOptions(),  # noqa: B008
    store: str | None = None,
    cluster: str = "local",
    objects: str | None = None,
    format: Literal["jsonl", "parquet"] = "jsonl",  # noqa: A002
    completion_window: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> JobResult | State:
    """Run every request of the input through the model, once, and keep each result in SQL.

    Running it again with the same parameters resumes the job, or writes its outputs again. One that was
    cancelled goes on with resume, or when its flow run is retried.

    Args:
        input: Paths, globs or object-store URIs: OpenAI batch JSONL, or rows as JSONL, CSV or Parquet.
        model: Directory of the model (config, tokenizer and safetensors), or its URI in an object store.
        output: Folder, or object-store URI, for output, errors and the report.
        job_id: Name of the job. Derived from input, model and settings when left out.
        rows: How rows become requests.
        sampling: Request fields for rows that do not set them.
        engine: The engine, its replicas and its arguments.
        store: Result store: block:NAME, env:NAME of a variable with its URL, or a URL without password.
            A SQLite file in the output folder when left out.
        cluster: Ray cluster: local, block:NAME, or the address of one that runs.
        objects: Object-store credentials: block:NAME. The environment's when left out.
        format: Format of output and errors.
        completion_window: 24h, 90m: what is unfinished so long after the job was created becomes error rows.
        resume: Go on with the job, too, if it was cancelled.
        overwrite: Replace files of others in the output folder; they are refused otherwise.
    """
    started = time.time()
    settings = job_settings(
        inputs=input, model=model, output=output, job_id=job_id, rows=rows, sampling=sampling,
        engine=engine, store=store, cluster=cluster, objects=objects, output_format=format,
        completion_window=completion_window, overwrite=overwrite,
    )  # fmt: skip
    where = cluster_settings(cluster)
    if where.address is None and settings.engine == "vllm":  # other clusters have a vLLM of their own
        refuse_arguments(settings.engine_arguments)
    try:
        result = _drive(settings, where, started, resume=resume)
    except CancelledError as error:
        return Cancelled(message=str(error))
    if result.state == JobState.CANCELLED:
        return Cancelled(message=cancelled_message(result.job_id))
    return result


def _drive(settings: JobSettings, where: ClusterSettings, started: float, *, resume: bool) -> JobResult:
    """The job, from its opening to its last file; CancelledError before its rows are known."""
    timeline = Timeline(started)
    job = open_job(settings, started, resume=resume)
    with driving(job):
        with (
            Weighing(job) as weighing,
            cluster_of(job, where, timeline) as running,
            early_weights(job, where) as early,
        ):
            replicas = settings.replicas or expected_replicas(
                settings.engine, settings.engine_arguments, settings.replica_gpus, where
            )
            shards = stoppable(job, lambda: ingest(job, timeline, replicas=replicas), PageCancel(job).look)
            stoppable(job, lambda: _hold_to_weights(job, weighing), PageCancel(job).look)
            accounts = (
                stoppable(job, lambda: _run_shards(job, shards, running, timeline, early), running.check)
                if open_shards(shards) and not _is_stopped(job)
                else []
            )
        return finalise(job, timeline, accounts, _end_state(job))


def _hold_to_weights(job: OpenJob, weighing: Weighing) -> None:
    """Refuse to go on with other weights than those that rows were answered with."""
    with Heed(job) as heed:
        weighing.check(heed.look)


def _run_shards(
    job: OpenJob, shards: list[Shard], running: RunningCluster, timeline: Timeline, early: LocalModel | None
) -> list[ReplicaAccount]:
    """Start the replicas, run the shards on them, and say what each replica did."""
    try:
        info = running.wait()
    except (CancelledError, ExpiredError):  # the store says what becomes of the job
        return []
    with open_store(job.settings.store_url, create=False) as store:
        kind, model_name = engine_kind(store, job)
    settings = job.settings
    spec = EngineSpec(
        name=settings.engine,
        model=settings.model,
        kind=kind,
        model_name=model_name,
        arguments=dict(settings.engine_arguments),
        weights=job.weights,
        weights_patience=AGENT_SECONDS,
        bundles=settings.bundles,
        stall_seconds=settings.stall_seconds,
        cpus=settings.replica_cpus,
        gpus=settings.replica_gpus,
        objects=settings.model_access,
    )
    ledger = JobLedger(job)
    prefix = f"{job.job_id}/{job.lease.epoch}"
    lanes = settings.replicas or default_replicas(spec, info)
    pool = ReplicaPool(prefix, spec, info, lanes, ledger)
    noticing = Noticing(job, pool)
    pool.start()
    try:
        bound = bound_tasks(job, pool.lanes, info)
        with weights_on(job, early), ShardTasks(job, shards, pool.lanes, info, bound) as tasks:
            if not start_replicas(job, pool, ledger, noticing, timeline):
                return []
            with (
                Bulletin(job.job_id) as bulletin,
                Monitor(job, pool, ledger, noticing, bulletin) as monitor,
            ):
                last_commit = tasks.run(monitor)
    finally:
        pool.stop()
    starts = pool.starts()
    note_starts(starts, timeline)
    timeline.add("inference", min(start.ready for start in starts), last_commit or time.time())
    return running.accounts(starts, monitor.statuses())


def _is_stopped(job: OpenJob) -> bool:
    """Whether nobody wants the replicas any more; they are not asked for then."""
    with open_store(job.settings.store_url, create=False) as store:
        return orders_of(store, job).stop


def _end_state(job: OpenJob) -> JobState:
    with open_store(job.settings.store_url, create=False) as store:
        if store.get_job(job.job_id).state is JobState.EXPIRED:
            return JobState.EXPIRED  # in an earlier run, and every row has its outcome since
        unfinished = store.counts(job.job_id).pending > 0
        orders = orders_of(store, job)
        if unfinished and orders.cancelled:
            get_run_logger().info("job %s: cancelled; `dray resume` goes on", job.job_id)
            return JobState.CANCELLED
        if unfinished and orders.expired:
            get_run_logger().info("job %s: its time is over; what is unfinished gets error rows", job.job_id)
            expire(store, job)
            return JobState.EXPIRED
    return JobState.COMPLETED


if __name__ == "__main__":
    batch_inference.serve(name="batch-inference")
