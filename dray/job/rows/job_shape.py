"""The shape of a job's rows, and the sequences that each is, from some of them in its spool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from dray.errors import DrayError
from dray.job.open_job import OpenJob
from dray.planner.workload.prompts import Unreadable, asked
from dray.requests.spool.spool import decode, read_shard
from dray.requests.task_shape import LOOKED_AT, shape_of_rows
from dray.store import Shard

_SHARDS = 8  # that are looked into, all over the job


def job_shape(job: OpenJob, shards: Sequence[Shard]) -> str | None:
    """What nearly all of the job's rows have in common; None where they differ, or the spool is gone."""
    try:
        return shape_of_rows(_some_rows(job, shards))
    except (DrayError, OSError):
        return None  # only later plans would have been better for it


def job_sequences(job: OpenJob, shards: Sequence[Shard]) -> tuple[float, float]:
    """Prompts of a row in the mean, and answers to each; 1 and 1 where the spool is gone."""
    found: list[tuple[int, int]] = []
    try:
        for line in _some_rows(job, shards):
            request = decode(line)
            with suppress(Unreadable):
                one = asked(request.url, request.body, lambda body, answered: "")
                found.append((len(one.prompts), one.answers))
    except (DrayError, OSError):
        return 1.0, 1.0
    count = max(1, len(found))
    prompts, sequences = sum(n for n, _ in found) / count, sum(n * m for n, m in found) / count
    return (prompts, sequences / prompts) if found else (1.0, 1.0)


def _some_rows(job: OpenJob, shards: Sequence[Shard]) -> Iterator[bytes]:
    chosen = shards[:: max(1, len(shards) // _SHARDS)][:_SHARDS]
    rows = max(1, LOOKED_AT // max(1, len(chosen)))
    for shard in chosen:
        chunks = read_shard(
            shard.uri, shard.offset, shard.length, chunk_rows=rows, options=job.settings.objects
        )
        yield from islice(next(chunks, []), rows)
