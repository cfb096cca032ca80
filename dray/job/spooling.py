"""The spool of a job: every driver writes one of its own, and the store says which one is read.

So a driver that was frozen while it took the input in, and finds itself replaced, overwrites nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from dray.errors import JobChangedError
from dray.job.opening import OpenJob
from dray.requests.ingest import Ingested
from dray.storage.files import exists, remove
from dray.storage.s3_uploads import end_unfinished, unfinished
from dray.store import Job, Shard

DIGEST = "spool_sha256"
"""Where the job's ``info`` has the SHA-256 of the spool that its shards were cut from, in hex."""


def is_missed(job: OpenJob, shards: Sequence[Shard]) -> bool:
    """Whether the spool that holds these shards is gone; never where there are none."""
    return not all(exists(uri, options=job.settings.objects) for uri in {shard.uri for shard in shards})


def spool_of(job: OpenJob) -> str:
    """Where this driver writes the job's spool."""
    return job.spool(job.lease.epoch)


def remove_older(job: OpenJob, shards: Sequence[Shard] = ()) -> None:
    """Remove what earlier drivers have written, except the spool that ``shards`` were cut from."""
    read = {shard.uri for shard in shards}
    older = {job.spool(epoch) for epoch in range(1, job.lease.epoch)}
    for spool in older - read:
        _remove(job, spool)
    if older:
        found = unfinished(f"{job.work}/", job.settings.objects)
        end_unfinished([one for one in found if one[0] in older], job.settings.objects)


def remove_own(job: OpenJob, shards: Sequence[Shard]) -> None:
    """Remove this driver's spool: another driver has the job. One that ``shards`` were cut from stays."""
    if all(shard.uri != spool_of(job) for shard in shards):
        _remove(job, spool_of(job))


def refuse_other(job: OpenJob, recorded: Job, lost: str, ingested: Ingested) -> None:
    """Make sure that a spool that was written again is the one that the shards were cut from.

    Raises:
        JobChangedError: the input gives other rows by now, as a query may.
    """
    if (ingested.rows, ingested.spool_sha256) == (recorded.total, recorded.info.get(DIGEST)):
        return
    _remove(job, ingested.spool_uri)
    raise JobChangedError(
        f"job {job.job_id}: its requests ({lost}) are gone, and its input gives other rows now, "
        "as a query may. Give another --job-id to start anew; what is finished stays in the store"
    )


def _remove(job: OpenJob, spool: str) -> None:
    for uri in (spool, f"{spool}.rejects"):
        with suppress(OSError):  # it is not there, or may not be removed: no shard task reads it
            remove(uri, options=job.settings.objects)
