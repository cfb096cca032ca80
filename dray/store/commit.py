"""The commit: the only way to publish outcomes.

Fence, then rows, then progress, in one transaction. The fence locks the shard's row until the
end, so two commits to one shard come one after the other, and "which rows are new?" can be asked
first and answered by plain bulk inserts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update

from dray.requests.model import REUSED, Outcome
from dray.store.attempts import change_attempt
from dray.store.database.connection import Tx
from dray.store.database.schema import FIELD_OF, attempts, followers, jobs, results, shards
from dray.store.jobs import check_driver, stop_signals
from dray.store.presence import present
from dray.store.records import REJECTED, CommitReceipt, JobLease, ShardLease
from dray.store.shards import renew

_OWN = ("job_key", "shard", "epoch", "committed_at")  # columns that the commit itself fills
_AT_INGEST = results.c.shard.in_([REJECTED, REUSED])
_GIVEN = [column.name for column in results.c if column.name not in (*_OWN, "response")]
_ROW = [*_OWN, *_GIVEN, "response"]
_INSERT = f"INSERT INTO results ({', '.join(_ROW)}) VALUES ({', '.join('?' for _ in _ROW)})"  # noqa: S608
_COPY = f"COPY results ({', '.join(_ROW)}) FROM STDIN"
_values_of = attrgetter(*map(FIELD_OF.__getitem__, _GIVEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gain:
    """What newly inserted rows add to the counters."""

    done: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> _Gain:
        failed = sum(1 for outcome in outcomes if outcome.failed)
        return cls(
            done=len(outcomes) - failed,
            failed=failed,
            prompt_tokens=sum(outcome.prompt_tokens for outcome in outcomes),
            cached_tokens=sum(outcome.cached_tokens for outcome in outcomes),
            completion_tokens=sum(outcome.completion_tokens for outcome in outcomes),
        )


def commit(tx: Tx, lease: ShardLease, outcomes: Iterable[Outcome]) -> CommitReceipt:
    """Publish outcomes under a lease; rows that are there already stay as they are."""
    renew(tx, lease)
    fresh = insert_new(tx, lease.key, lease.number, lease.epoch, outcomes)
    if fresh:
        _count(tx, lease, _Gain.of(fresh))
    return CommitReceipt(inserted=len(fresh), signals=stop_signals(tx, lease.key))


def at_ingest(tx: Tx, lease: JobLease, shard: int, outcomes: Sequence[Outcome]) -> int:
    """Publish outcomes of rows that enter no shard, before the job has any; how many rows.

    ``shard``: ``REJECTED`` for the error outcomes of rows that ingest refused, ``REUSED`` for answers of
    earlier jobs.
    """
    check_driver(tx, lease)
    insert_new(tx, lease.key, shard, 0, outcomes)
    return len({outcome.index for outcome in outcomes})


def forget_ingest(tx: Tx, lease: JobLease) -> None:
    """Delete what an ingest that never came to its end has stored: the input may be another by now."""
    check_driver(tx, lease)
    unpublished = select(jobs.c.job_key).where(jobs.c.job_key == lease.key, jobs.c.total.is_(None))
    tx.execute(delete(results).where(results.c.job_key.in_(unpublished), _AT_INGEST))
    tx.execute(delete(followers).where(followers.c.job_key.in_(unpublished)))


def insert_new(tx: Tx, job_key: int, shard: int, epoch: int, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Insert outcomes of rows that have none yet, and return these; the first of a pair stays."""
    unique = {outcome.index: outcome for outcome in reversed(list(outcomes))}
    for index in present(tx, job_key, list(unique)):
        del unique[index]
    fresh = sorted(unique.values(), key=attrgetter("index"))
    if fresh:
        now = tx.execute(select(tx.now)).scalar_one()
        _insert(tx, [_row(job_key, shard, epoch, now, outcome) for outcome in fresh])
    return fresh


def _row(job_key: int, shard: int, epoch: int, now: float, outcome: Outcome) -> tuple[Any, ...]:
    """The values of one row, in the order of ``_ROW``."""
    response = None if outcome.response is None else outcome.response.decode()
    return (job_key, shard, epoch, now, *_values_of(outcome), response)


def _insert(tx: Tx, rows: list[tuple[Any, ...]]) -> None:
    if tx.dialect == "postgresql":
        cursor = tx.connection.connection.cursor()
        with cursor.copy(_COPY) as copy:
            for row in rows:
                copy.write_row(row)
    else:
        tx.connection.exec_driver_sql(_INSERT, rows)


def _count(tx: Tx, lease: ShardLease, gain: _Gain) -> None:
    own: ColumnElement[bool] = (shards.c.job_key == lease.key) & (shards.c.number == lease.number)
    tx.execute(
        update(shards)
        .where(own)
        .values(
            done=shards.c.done + gain.done,
            failed=shards.c.failed + gain.failed,
            prompt_tokens=shards.c.prompt_tokens + gain.prompt_tokens,
            cached_tokens=shards.c.cached_tokens + gain.cached_tokens,
            completion_tokens=shards.c.completion_tokens + gain.completion_tokens,
            interruptions=0,
        )
    )
    change_attempt(
        tx,
        lease.key,
        lease.number,
        lease.epoch,
        done=attempts.c.done + gain.done,
        failed=attempts.c.failed + gain.failed,
        prompt_tokens=attempts.c.prompt_tokens + gain.prompt_tokens,
        completion_tokens=attempts.c.completion_tokens + gain.completion_tokens,
    )
