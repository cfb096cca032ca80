"""Deleting a job: first out of sight, in one transaction; then its rows, in small ones.

A job that is being deleted has another name, ``deleted:KEY:JOB``. So no driver can resume it, and a new job
may have its old name. The next deletion finds one that was interrupted, and goes on with it. Functions
on one open transaction.

Two processes may delete one job at once, and SQLite gives a key again once its row is gone. So each
transaction first makes sure that the key still is that of the buried job, and holds its row until the commit.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Table, delete, literal, or_, select, true, update

from dray.store.database.connection import Tx, walk_the_key
from dray.store.database.schema import (
    attempts,
    charges,
    followers,
    jobs,
    notices,
    replicas,
    results,
    shards,
    spans,
)
from dray.store.jobs import PREFIX, of_key, same
from dray.store.reading import octets
from dray.store.records import Job

BATCH_ROWS = 5000
"""Rows of one transaction at most."""

BATCH_BYTES = 32 << 20
"""Bytes of their answers, or a single one: SQLite keeps all commits of other jobs waiting meanwhile."""

SPOOLS = "spools"
"""Where the ``info`` of a job that is being deleted has the URIs of its spools."""

BURIAL = "burial"
"""Where it has what tells this deletion from others, which may bury a job of the same name and key."""


def bury(tx: Tx, seen: Job, burial: str, *, seize: bool) -> Job | None:
    """Take the job out of sight, and its shards from all who hold them; None when it changed or is driven.

    ``burial`` is unique to the call: when its commit is repeated, it finds the job that it has buried.
    ``seize`` takes the job from a live lease, whose owner is known to be dead.
    """
    spools = tx.execute(select(shards.c.uri).where(shards.c.job_key == seen.key).distinct()).scalars().all()
    free = or_(jobs.c.driver_owner.is_(None), jobs.c.driver_until <= tx.now)
    buried = tx.execute(
        update(jobs)
        .where(same(seen), jobs.c.epoch == seen.epoch, true() if seize else free)
        .values(
            job_id=f"{PREFIX}{seen.key}:{seen.job_id}",
            epoch=jobs.c.epoch + 1,  # fences the driver that held it
            driver_owner=None,
            driver_until=None,
            info={**seen.info, SPOOLS: list(spools), BURIAL: burial},
        )
    )
    if buried.rowcount == 1:
        tx.execute(delete(shards).where(shards.c.job_key == seen.key))  # fences the shard tasks that hold one
    found = of_key(tx, seen.key)
    return found if found is not None and found.info.get(BURIAL) == burial else None


def remove_batch(tx: Tx, buried: Job, first: int) -> tuple[int, int | None]:
    """Delete the job's next rows from index ``first`` on: how many, and the index of the next batch.

    That index is None after the last batch, and where another deletion was faster. PostgreSQL's index keeps
    the entries of deleted rows until a vacuum, so no batch searches where earlier ones were.
    """
    return _remove_next(tx, results, buried, first)


def remove_followers(tx: Tx, buried: Job, first: int) -> tuple[int, int | None]:
    """Delete the next rows that wait for the outcome of another, as :func:`remove_batch`."""
    return _remove_next(tx, followers, buried, first)


def _remove_next(tx: Tx, table: Table, buried: Job, first: int) -> tuple[int, int | None]:
    if not _is_there(tx, buried):
        return 0, None
    which = (table.c.job_key == buried.key) & (table.c.idx >= first)
    following = _after_batch(tx, table, which)
    if following is not None:
        which = which & (table.c.idx < following)
    return int(tx.execute(delete(table).where(which)).rowcount), following


def _after_batch(tx: Tx, table: Table, which: ColumnElement[bool]) -> int | None:
    """Index of the first row beyond the next batch; None where the batch has all that is left."""
    size = octets(tx, table.c.response) if "response" in table.c else literal(0)
    walk_the_key(tx)
    rows = select(table.c.idx, size).where(which).order_by(table.c.idx).limit(BATCH_ROWS + 1)
    held = 0
    with tx.execute(rows) as found:
        for number, (index, length) in enumerate(found):
            if number == BATCH_ROWS or held >= BATCH_BYTES:
                return int(index)
            held += length or 0
    return None


def remove_rest(tx: Tx, buried: Job) -> None:
    """Delete what is left when the rows are gone, the job itself last."""
    if not _is_there(tx, buried):
        return
    for table in (shards, replicas, charges, attempts, notices, spans, jobs):
        tx.execute(delete(table).where(table.c.job_key == buried.key))


def _is_there(tx: Tx, buried: Job) -> bool:
    """Whether the key still is this job's; it stays so until the commit."""
    found = of_key(tx, buried.key, locked=True)
    return (
        found is not None
        and (found.job_id, found.epoch, found.created_at) == (buried.job_id, buried.epoch, buried.created_at)
        and found.info.get(BURIAL) == buried.info.get(BURIAL)  # None: an earlier version of dray began it
    )


def name_of(job: Job) -> str:
    """The name that a job had before it was taken out of sight."""
    return job.job_id.removeprefix(f"{PREFIX}{job.key}:")
