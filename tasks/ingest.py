"""Read the input once: validate, count, spool, cut into shards."""

from __future__ import annotations

from collections.abc import Callable

from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.rows.ingesting import ingest_told
from dray.store import Shard
from tasks.settling import step


@step("ingest")
def ingest(job: OpenJob, timeline: Timeline, replicas: int, say: Callable[[str], None]) -> list[Shard]:
    """The job's shards; every problem in the input is reported before any engine starts."""
    return ingest_told(job, timeline, replicas, say)
