"""Read the input once: validate, count, spool, cut into shards."""

from __future__ import annotations

from collections.abc import Callable

from prefect import task
from prefect.cache_policies import NO_CACHE

from dray.job.ingesting import ingest_told
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.store import Shard
from tasks.settling import noted


@noted
@task(name="ingest", task_run_name="ingest", persist_result=False, cache_policy=NO_CACHE)
def ingest(job: OpenJob, timeline: Timeline, replicas: int, say: Callable[[str], None]) -> list[Shard]:
    """The job's shards; every problem in the input is reported before any engine starts."""
    return ingest_told(job, timeline, replicas, say)
