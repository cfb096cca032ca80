"""End a job whose time is over: error rows for what has no outcome."""

from __future__ import annotations

from collections.abc import Iterator

from dray.job.attempt import refused
from dray.job.driver import driver_name
from dray.job.ingesting import open_shards
from dray.job.opening import OpenJob
from dray.job.shard import publish
from dray.requests.spool import index_of, read_shard
from dray.store import JobState, Shard, Store

MESSAGE = "the job's completion window was over before this request was answered"


def expire(store: Store, job: OpenJob) -> None:
    """Give every row without an outcome the error ``expired``. May be run again after a crash."""
    # First, so that whoever goes on after a crash knows what the rows came to.
    store.set_job_state(job.lease, JobState.EXPIRED)
    owner = driver_name()
    for shard in open_shards(store.shards(job.job_id)):
        lease = store.claim_shard(job.lease, shard.number, owner=owner)
        if lease is None:
            continue
        done = frozenset(store.done_indexes(job.job_id, shard.first_index, shard.last_index))
        for rows in _undone(job, shard, done):
            publish(store, lease, [refused(line, "expired", MESSAGE) for line in rows])
        store.finish_shard(lease)


def _undone(job: OpenJob, shard: Shard, done: frozenset[int]) -> Iterator[list[bytes]]:
    for chunk in read_shard(shard.uri, shard.offset, shard.length, options=job.settings.objects):
        rows = [line for line in chunk if index_of(line) not in done]
        if rows:
            yield rows
