"""Helpers for tests of the store: a clock that stands still, and jobs ready to be worked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.codes import ErrorCode
from dray.requests.model import Outcome
from dray.requests.spool.spool import index_of, read_shard
from dray.store import Charge, Fingerprint, JobLease, Shard, ShardLease, ShardSpec, Store
from dray.store.charges import charge

FINGERPRINT = Fingerprint(input="i", model="m", sampling="s", template="t", format="1")


class FakeClock:
    """A database clock that tests move by hand. Seconds since 1970."""

    def __init__(self, time: float = 1_000_000.0) -> None:
        self.time = time

    def now(self, dialect: str) -> str:
        return f"CAST({self.time!r} AS double precision)"

    def pass_seconds(self, seconds: float) -> None:
        self.time += seconds


def specs(shards: int, rows: int) -> list[ShardSpec]:
    """``shards`` shards of ``rows`` rows each, one byte a row."""
    return [
        ShardSpec(
            number=number,
            uri="spool.jsonl",
            offset=number * rows,
            length=rows,
            rows=rows,
            first_position=number * rows,
        )
        for number in range(shards)
    ]


def indexes_of(shard: Shard | ShardSpec) -> list[int]:
    """The rows of a shard, as its bytes of the spool have them."""
    chunks = read_shard(shard.uri, shard.offset, shard.length)
    return [index_of(line) for lines in chunks for line in lines]


def outcome(index: int, text: str = "answer") -> Outcome:
    """A good answer, whose token counts depend on the index."""
    return Outcome(
        index,
        f"id-{index}",
        text.encode(),
        prompt_tokens=index + 1,
        cached_tokens=1,
        completion_tokens=2,
        queue_seconds=0.25,
        first_token_seconds=0.5,
        total_seconds=1.5,
    )


def failure(index: int, code: ErrorCode = "context_length_exceeded") -> Outcome:
    """An error row."""
    return Outcome(index, f"id-{index}", error_code=code, error_message="too long")


def outcomes(indexes: Sequence[int], text: str = "answer") -> list[Outcome]:
    """Good answers."""
    return [outcome(index, text) for index in indexes]


def ready_job(
    store: Store,
    job_id: str = "job",
    *,
    shards: int = 2,
    rows: int = 4,
    settings: Mapping[str, Any] | None = None,
) -> JobLease:
    """A job in progress, driven by ``driver``."""
    store.create_job(job_id, fingerprint=FINGERPRINT, settings=settings or {})
    lease = store.claim_job(job_id, "driver")
    store.add_shards(lease, specs(shards, rows), total_rows=shards * rows)
    return lease


def note_charges(store: Store, job_id: str, charged: Sequence[Charge]) -> None:
    """Charges as the driver's judgement and a shard's end do, without either."""
    key = store._key(job_id)
    store._write(lambda tx: charge(tx, key, charged))


def claimed(store: Store, lease: JobLease, number: int = 0, owner: str = "worker") -> ShardLease:
    """A shard's lease, which must be to be had."""
    taken = store.claim_shard(lease, number, owner=owner)
    assert taken is not None
    return taken
