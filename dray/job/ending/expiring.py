"""End a job whose time is over: error rows for what has no outcome."""

from __future__ import annotations

from dray.errors import StoreFatalError
from dray.failures.facts import Cause
from dray.job.open_job import OpenJob
from dray.job.rows.following import answer_followers
from dray.owner import owner_name
from dray.requests.model import EXPIRED
from dray.shard.committing import publish
from dray.shard.ending import refused
from dray.shard.open_rows import Finished, open_lines
from dray.store import JobState, Shard, ShardLease, ShardState, Store

MESSAGE = "the job's completion window was over before this request was answered"


def expire(store: Store, job: OpenJob) -> None:
    """Give every row without an outcome the error ``expired``. May be run again after a crash.

    Shards that are still held are taken back: their holders were told to stop, and write nothing more.

    Raises:
        FencedError: another driver has the job.
        StoreFatalError: rows are left without an outcome.
    """
    # First, so that the driver that resumes the job after a crash knows that its rows expired.
    store.set_job_state(job.lease, JobState.EXPIRED)
    owner = owner_name()
    while unfinished := store.shards(job.job_id, open_only=True):
        for shard in unfinished:
            lease = _taken(store, job, shard, owner)
            if lease is not None:  # else it ended or was split meanwhile: see what is open now
                _end(store, job, shard, lease)
    answer_followers(store, job)
    counts = store.counts(job.job_id)
    if counts.pending:
        raise StoreFatalError(f"job {job.job_id}: {counts.pending} of {counts.total} rows have no outcome")


def _taken(store: Store, job: OpenJob, shard: Shard, owner: str) -> ShardLease | None:
    if shard.state is ShardState.LEASED:
        store.take_back(job.lease, shard.number, cause=Cause.CANCEL, detail="the job's time is over")
    return store.claim_shard(job.lease, shard.number, owner=owner)


def _end(store: Store, job: OpenJob, shard: Shard, lease: ShardLease) -> None:
    finished = Finished.of(store, job.job_id, lease.terminal)
    for chunk in open_lines(shard, finished, job.settings.objects):
        publish(store, lease, [refused(line, EXPIRED, MESSAGE) for line in chunk.lines])
    store.finish_shard(lease)
