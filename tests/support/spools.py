"""A job's spool, as tests of several drivers look at it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dray.job.open_job import OpenJob
from dray.requests.spool.spool import decode, read_shard
from dray.store import Shard, Store


def resumed(store: Store, job: OpenJob) -> OpenJob:
    """The next driver's job; like a query's, its input is not looked at again."""
    return replace(job, lease=store.claim_job(job.job_id, "next", takeover=lambda _: True))


def prompts_of(shards: Iterable[Shard]) -> list[str]:
    """The prompts that the shards hold, in the order of the input."""
    lines = [
        line for one in shards for chunk in read_shard(one.uri, one.offset, one.length) for line in chunk
    ]
    return [decode(line).body["messages"][0]["content"] for line in lines]


def spool_files(job: OpenJob) -> list[str]:
    """The names of the spool's files."""
    return sorted(file.name for file in Path(job.work).iterdir())
