"""The spool of a job: every driver writes one of its own, and the store says which one is read.

So a driver that was frozen while it took the input in, and finds itself replaced, overwrites nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from dray.errors import JobChangedError
from dray.job.opening import OpenJob
from dray.requests.files import exists, read_range, remove
from dray.requests.ingest import Ingested
from dray.store import Shard

_HEAD_BYTES = 32  # a line end, and the beginning of a line up to its index


def is_missed(job: OpenJob, shards: Sequence[Shard]) -> bool:
    """Whether the spool that holds these shards is gone; never where there are none."""
    return not all(exists(uri, options=job.settings.objects) for uri in {shard.uri for shard in shards})


def spool_of(job: OpenJob) -> str:
    """Where this driver writes the job's spool."""
    return job.settings.spool(job.job_id, job.lease.epoch)


def remove_older(job: OpenJob) -> None:
    """Remove what earlier drivers have written, and the store knows nothing of."""
    for epoch in range(1, job.lease.epoch):
        _remove(job, job.settings.spool(job.job_id, epoch))


def refuse_other(job: OpenJob, shards: Sequence[Shard], total: int, ingested: Ingested) -> None:
    """Make sure that a spool that was written again is the one that the shards were cut from.

    Raises:
        JobChangedError: the input gives other rows by now, as a query may.
    """
    whole = [shard for shard in shards if shard.parent is None]
    rows = sum(shard.rows for shard in whole)
    size = max(shard.offset + shard.length for shard in whole)
    same = (ingested.rows, ingested.requests, ingested.spool_bytes) == (total, rows, size)
    if same and all(_begins_at_its_row(job, ingested.spool_uri, shard) for shard in shards):
        return
    _remove(job, ingested.spool_uri)
    raise JobChangedError(
        f"job {job.job_id}: its requests ({whole[0].uri}) are gone, and its input gives other rows now, as a "
        "query may. Give another --job-id to start anew; what is finished stays in the store"
    )


def _begins_at_its_row(job: OpenJob, uri: str, shard: Shard) -> bool:
    before = min(shard.offset, 1)
    head = read_range(uri, shard.offset - before, _HEAD_BYTES, options=job.settings.objects)
    return head.startswith(b"\n" * before + b'{"i":%d,' % shard.first_index)


def _remove(job: OpenJob, spool: str) -> None:
    for uri in (spool, f"{spool}.rejects"):
        with suppress(OSError):  # it is not there, or may not be removed: nobody reads it
            remove(uri, options=job.settings.objects)
