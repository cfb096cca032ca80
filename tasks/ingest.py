"""Read the input once: validate, count, spool, cut into shards."""

from __future__ import annotations

import time

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dray.job.ingesting import ingest_job
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.store import Shard
from tasks.settling import noted

_SECONDS_BETWEEN_LINES = 5.0


@noted
@task(name="ingest", task_run_name="ingest", persist_result=False, cache_policy=NO_CACHE)
def ingest(job: OpenJob, timeline: Timeline, replicas: int) -> list[Shard]:
    """The job's shards; every problem in the input is reported before any engine starts."""
    logger = get_run_logger()
    last = time.monotonic()

    def progress(rows: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            logger.info("ingest: %s rows read", f"{rows:,}")

    def say(found: str) -> None:
        logger.info("ingest: %s", found)

    with timeline.phase("ingest"):
        shards = ingest_job(job, replicas=replicas, progress=progress, say=say)
    parts = f"{len(shards)} shard{'s' if len(shards) != 1 else ''}"
    logger.info("ingest: %s requests in %s", f"{sum(shard.rows for shard in shards):,}", parts)
    return shards
