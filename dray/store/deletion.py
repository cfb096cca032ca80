"""Deleting a job: first out of sight, in one transaction; then its rows, in small ones.

A job that is being deleted has another name, ``deleted:KEY:JOB``: nobody can resume it, a new job may have
its old name, and a deletion that was interrupted is found again and goes on. Functions on one transaction.
"""

from __future__ import annotations

from sqlalchemy import delete, or_, select, true, update

from dray.store.connection import Tx
from dray.store.jobs import PREFIX
from dray.store.records import Job
from dray.store.schema import attempts, charges, jobs, notices, replicas, results, shards, spans

BATCH_ROWS = 5000
"""Rows of one transaction."""

SPOOLS = "spools"
"""Where the ``info`` of a job that is being deleted has the URIs of its spools."""


def bury(tx: Tx, seen: Job, *, seize: bool) -> bool:
    """Take the job out of sight, and its shards from all who hold them; false when it changed or is driven.

    ``seize`` takes it from a live lease, whose owner is known to be dead.
    """
    spools = tx.execute(select(shards.c.uri).where(shards.c.job_key == seen.key).distinct()).scalars().all()
    free = or_(jobs.c.driver_owner.is_(None), jobs.c.driver_until <= tx.now)
    buried = tx.execute(
        update(jobs)
        .where(jobs.c.job_key == seen.key, jobs.c.epoch == seen.epoch, true() if seize else free)
        .values(
            job_id=f"{PREFIX}{seen.key}:{seen.job_id}",
            epoch=jobs.c.epoch + 1,  # whoever drove it is fenced
            driver_owner=None,
            driver_until=None,
            info={**seen.info, SPOOLS: list(spools)},
        )
    )
    if buried.rowcount == 1:
        tx.execute(delete(shards).where(shards.c.job_key == seen.key))  # so are those who hold one
        return True
    return False


def remove_batch(tx: Tx, job_key: int) -> int:
    """Delete some of the job's rows; how many."""
    beyond = select(results.c.idx).where(results.c.job_key == job_key)
    last = tx.execute(beyond.order_by(results.c.idx).offset(BATCH_ROWS).limit(1)).scalar()
    which = results.c.job_key == job_key
    if last is not None:
        which = which & (results.c.idx < last)
    return int(tx.execute(delete(results).where(which)).rowcount)


def remove_rest(tx: Tx, job_key: int) -> None:
    """Delete what is left when the rows are gone, the job itself last."""
    for table in (shards, replicas, charges, attempts, notices, spans, jobs):
        tx.execute(delete(table).where(table.c.job_key == job_key))


def name_of(job: Job) -> str:
    """The name that a job had before it was taken out of sight."""
    return job.job_id.removeprefix(f"{PREFIX}{job.key}:")
