"""The append-only records: attempts at shards, interruption notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, insert, select, update

from dray.failures.facts import Cause
from dray.places import place_of
from dray.store.attempt_causes import AttemptCause
from dray.store.database.connection import Tx
from dray.store.database.schema import attempts, notices, replicas
from dray.store.records import Attempt, StoredNotice

_DEATHS = (Cause.ENGINE_CRASH, Cause.OOM, Cause.NODE_LOSS)


def open_attempt(tx: Tx, job_key: int, shard: int, epoch: int, *, owner: str, replica: str | None) -> None:
    """Note that a shard was claimed."""
    tx.execute(
        insert(attempts).values(
            job_key=job_key,
            shard=shard,
            epoch=epoch,
            owner=owner,
            replica=replica,
            started_at=tx.now,
            detail="",
        )
    )


def close_attempts(
    tx: Tx, job_key: int, numbers: Sequence[int], *, cause: str | ColumnElement[str], detail: str = ""
) -> None:
    """End the running attempts at these shards."""
    tx.execute(
        update(attempts)
        .where(attempts.c.job_key == job_key, attempts.c.shard.in_(numbers), attempts.c.ended_at.is_(None))
        .values(ended_at=tx.now, cause=cause, detail=detail)
    )


def cause_of_steal(owner: str) -> ColumnElement[str]:
    """How an attempt ends whose shard ``owner`` claims: it lapsed, or it is the same claim made again."""
    again = attempts.c.owner == owner
    return case((again, AttemptCause.CLAIMED_AGAIN), else_=AttemptCause.LEASE_EXPIRED)


def change_attempt(tx: Tx, job_key: int, shard: int, epoch: int, **values: Any) -> None:
    """Set columns of one attempt. Values may be expressions over the columns."""
    which: ColumnElement[bool] = and_(
        attempts.c.job_key == job_key, attempts.c.shard == shard, attempts.c.epoch == epoch
    )
    tx.execute(update(attempts).where(which).values(**values))


def rows_of_attempt(tx: Tx, job_key: int, shard: int, epoch: int) -> int:
    """Rows that one attempt published."""
    published = select(attempts.c.done + attempts.c.failed).where(
        attempts.c.job_key == job_key, attempts.c.shard == shard, attempts.c.epoch == epoch
    )
    return int(tx.execute(published).scalar() or 0)


def last_death(tx: Tx, job_key: int, shard: int) -> str | None:
    """The place where a replica last died under a shard's attempt, whatever it had been given."""
    died = _places(job_key, shard).where(attempts.c.cause.in_(_DEATHS))
    found = tx.execute(died.order_by(attempts.c.epoch.desc()).limit(1)).first()
    return None if found is None else place_of(found.node, found.replica)


def place_of_attempt(tx: Tx, job_key: int, shard: int, epoch: int) -> str | None:
    """The place where one attempt ran, as far as it is known."""
    found = tx.execute(_places(job_key, shard).where(attempts.c.epoch == epoch)).first()
    return None if found is None else place_of(found.node, found.replica)


def _places(job_key: int, shard: int) -> Select[tuple[str | None, str | None]]:
    """Nodes and replicas of a shard's attempts: all nodes of one that the job's present driver knows."""
    known = and_(replicas.c.job_key == attempts.c.job_key, replicas.c.name == attempts.c.replica)
    return (
        select(func.coalesce(replicas.c.node, attempts.c.node).label("node"), attempts.c.replica)
        .select_from(attempts.outerjoin(replicas, known))
        .where(attempts.c.job_key == job_key, attempts.c.shard == shard)
    )


def list_attempts(tx: Tx, job_key: int) -> list[Attempt]:
    """All attempts of a job, oldest first."""
    rows = tx.execute(
        select(*(attempts.c[name] for name in Attempt.__dataclass_fields__))
        .where(attempts.c.job_key == job_key)
        .order_by(attempts.c.attempt_key)
    )
    return [Attempt(**row._mapping) for row in rows]


def count_causes(tx: Tx, job_key: int) -> dict[str, int]:
    """How many attempts ended by each cause."""
    rows = tx.execute(
        select(attempts.c.cause, func.count())
        .where(attempts.c.job_key == job_key, attempts.c.cause.is_not(None))
        .group_by(attempts.c.cause)
    )
    return {row[0]: row[1] for row in rows}


def add_notice(tx: Tx, job_key: int, notice: StoredNotice) -> None:
    """Note an interruption notice, seen now by the database's clock. One that is known changes nothing."""
    own = and_(
        notices.c.job_key == job_key,
        notices.c.node == notice.node,
        notices.c.source == notice.source,
        notices.c.event == notice.event,
    )
    known = notice.event and tx.execute(select(notices.c.notice_key).where(own)).first()
    if not known:
        values = {name: value for name, value in asdict(notice).items() if name != "seen_at"}
        tx.execute(insert(notices).values(job_key=job_key, seen_at=tx.now, **values))


def list_notices(tx: Tx, job_key: int) -> list[StoredNotice]:
    """All notices of a job, oldest first."""
    rows = tx.execute(
        select(*(notices.c[name] for name in StoredNotice.__dataclass_fields__))
        .where(notices.c.job_key == job_key)
        .order_by(notices.c.notice_key)
    )
    return [StoredNotice(**row._mapping) for row in rows]
