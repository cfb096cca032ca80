"""The product: batch inference from requests to results, as one Prefect flow."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State

from dray.cluster import ClusterSettings, ReplicaPool
from dray.cluster.placing import default_replicas, expected_replicas
from dray.engine import EngineSpec
from dray.engine.declared import refuse_arguments
from dray.errors import CancelledError, ExpiredError
from dray.job.deadline import orders_of
from dray.job.expiring import expire
from dray.job.finalising import JobResult, ReplicaAccount
from dray.job.heeding import Heed
from dray.job.ingesting import engine_kind, open_shards
from dray.job.ledger import JobLedger
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.job.weighing import Weighing
from dray.store import JobState, Shard, open_store
from dray.weights import LocalModel
from flows.parameters import EngineOptions, RowOptions, SamplingOptions, filled
from flows.resolving import cluster_settings, job_settings
from tasks.blocking import warn_of_loop
from tasks.cluster import RunningCluster, cluster_of
from tasks.failing import driving
from tasks.finalise import finalise
from tasks.flushing import flush_prefect
from tasks.heeding import heeding, suspended
from tasks.infer import ShardTasks, bound_tasks
from tasks.ingest import ingest
from tasks.interruptions import InterruptionHandler
from tasks.monitor import Monitor
from tasks.opening import Declined, open_job
from tasks.progress_artifact import ProgressArtifact
from tasks.replicas import note_starts, start_replicas
from tasks.stopping import stoppable
from tasks.telling import cancelled, declined, ended, told
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
    prompt_column: str | None = None,
    system_prompt: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    replicas: int | None = None,
    rows: RowOptions | None = None,
    sampling: SamplingOptions | None = None,
    engine: EngineOptions | None = None,
    job_id: str | None = None,
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
        prompt_column: Column that holds the prompt. Leave it out for OpenAI batch files.
        system_prompt: System message for rows of a prompt column.
        max_tokens: Tokens to generate at most, where a row says nothing.
        temperature: 0 always takes the likeliest token; higher values vary more.
        replicas: Engines to run; one per GPU, or one on a machine without, when left out.
        rows: More on how rows become requests: template, ids, SQL query, what to do with invalid rows.
        sampling: More request fields for rows that do not set them.
        engine: More of the engine: its arguments, the size of shards, patience with one that stands still.
        job_id: Name of the job. Derived from input, model and settings when left out.
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
    warn_of_loop()
    settings = job_settings(
        inputs=input, model=model, output=output, job_id=job_id,
        rows=filled(rows or RowOptions(), prompt_column=prompt_column, system_prompt=system_prompt),
        sampling=filled(sampling or SamplingOptions(), max_tokens=max_tokens, temperature=temperature),
        engine=filled(engine or EngineOptions(), replicas=replicas),
        store=store, cluster=cluster, objects=objects, output_format=format,
        completion_window=completion_window, overwrite=overwrite,
    )  # fmt: skip
    where = cluster_settings(cluster)
    if where.address is None and settings.engine == "vllm":  # other clusters have a vLLM of their own
        refuse_arguments(settings.engine_arguments)
    job = open_job(settings, started, resume=resume)
    if isinstance(job, Declined):
        return declined(job)
    with told(job), heeding(job) as heard, ProgressArtifact(job.job_id) as bulletin:
        try:
            with driving(job, heard):
                result = _drive(job, where, bulletin)
        except CancelledError as error:  # before there was anything to write
            return cancelled(job, str(error))
        return ended(job, result)


def _drive(job: OpenJob, where: ClusterSettings, bulletin: ProgressArtifact) -> JobResult:
    """The job, from its input to its last file."""
    timeline, settings = Timeline(job.started), job.settings
    with (
        Weighing(job) as weighing,
        cluster_of(job, where, timeline) as running,
        early_weights(job, where) as early,
    ):
        replicas = settings.replicas or expected_replicas(
            settings.engine, settings.engine_arguments, settings.replica_gpus, where
        )
        shards = stoppable(job, partial(ingest, job, timeline, replicas=replicas))
        stoppable(job, partial(_hold_to_weights, job, weighing))
        run = partial(_run_shards, job, shards, running, timeline, early, bulletin)
        accounts = stoppable(job, run, running.check) if open_shards(shards) and not _is_stopped(job) else []
    return finalise(job, timeline, accounts, _end_state(job))


def _hold_to_weights(job: OpenJob, weighing: Weighing) -> None:
    """Refuse to go on with other weights than those that rows were answered with."""
    with Heed(job) as heed:
        weighing.check(heed.look)


def _run_shards(
    job: OpenJob,
    shards: list[Shard],
    running: RunningCluster,
    timeline: Timeline,
    early: LocalModel | None,
    bulletin: ProgressArtifact,
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
    noticing = InterruptionHandler(job, pool)
    pool.start()
    try:
        bound = bound_tasks(job, pool.lanes, info)
        with weights_on(job, early), ShardTasks(job, shards, pool.lanes, info, bound) as tasks:
            if not start_replicas(job, pool, ledger, noticing, timeline):
                return []
            with Monitor(job, pool, ledger, noticing, bulletin) as monitor:
                last_commit = tasks.run(monitor)
    finally:
        pool.stop()
    starts = pool.starts()
    note_starts(starts, timeline)
    timeline.add("inference", min(start.ready for start in starts), last_commit or time.time())
    return running.accounts(starts, monitor.statuses())


def _is_stopped(job: OpenJob) -> bool:
    """Whether the job is to stop; its driver then starts no replicas."""
    with open_store(job.settings.store_url, create=False) as store:
        return orders_of(store, job).stop


def _end_state(job: OpenJob) -> JobState:
    with open_store(job.settings.store_url, create=False) as store:
        if store.get_job(job.job_id).state is JobState.EXPIRED:
            return JobState.EXPIRED  # in an earlier run, and every row has its outcome since
        unfinished = store.counts(job.job_id).pending > 0
        if unfinished and store.get_job(job.job_id).state is JobState.PAUSED:
            raise suspended(job)
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
