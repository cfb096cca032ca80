"""The shape of a job's rows, from some of them in its spool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from dray.errors import DrayError
from dray.job.opening import OpenJob
from dray.requests.shape import LOOKED_AT, shape_of_rows
from dray.requests.spool import read_shard
from dray.store import Shard

_SHARDS = 8  # that are looked into, all over the job


def job_shape(job: OpenJob, shards: Sequence[Shard]) -> str | None:
    """What nearly all of the job's rows have in common; None where they differ, or the spool is gone."""
    try:
        return shape_of_rows(_some_rows(job, shards))
    except (DrayError, OSError):
        return None  # only later plans would have been better for it


def _some_rows(job: OpenJob, shards: Sequence[Shard]) -> Iterator[bytes]:
    chosen = shards[:: max(1, len(shards) // _SHARDS)][:_SHARDS]
    rows = max(1, LOOKED_AT // max(1, len(chosen)))
    for shard in chosen:
        chunks = read_shard(
            shard.uri, shard.offset, shard.length, chunk_rows=rows, options=job.settings.objects
        )
        yield from islice(next(chunks, []), rows)
