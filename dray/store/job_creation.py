"""New jobs, and their fingerprints. Functions on one open transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import insert as plain_insert
from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError

from dray.errors import JobChangedError
from dray.store.database.connection import Tx
from dray.store.database.schema import jobs
from dray.store.jobs import find, get, job_of
from dray.store.lasting_info import LASTING
from dray.store.option import store_option
from dray.store.records import Fingerprint, Job
from dray.store.states import JobState


def create(tx: Tx, job_id: str, fingerprint: Fingerprint, settings: Mapping[str, Any]) -> Job:
    """A new job in state ``validating``, or the one that is there if it has the same fingerprint.

    One whose input was never taken in, because it was refused or its driver died, has nothing to lose: it
    becomes the new one, and keeps of its ``info`` what lies in its folders. A driver that wakes up to take
    the old input in is fenced, and a claim for the old content is refused.
    """
    existing = find(tx, job_id)
    if existing is None:
        existing = _insert(tx, job_id, fingerprint, settings)
    changed = existing.fingerprint.told_differences(fingerprint)
    if changed and not _replace_untaken(tx, existing, fingerprint, settings):
        where = store_option(tx.connection.engine.url)
        raise JobChangedError(
            f"job {job_id} exists with other content: its {changed} changed. "
            f"`dray resume {job_id}{where}` goes on only with what the job was begun with; "
            "`dray run` with another --job-id, or with none, starts a new job"
        )
    return get(tx, job_id, "") if changed else existing


def refuse_other_content(seen: Job, fingerprint: Fingerprint) -> None:
    """Raise JobChangedError for a job with another fingerprint: a command gave it that meanwhile.

    A claim of the job as it was ``seen`` takes it with that fingerprint, or not at all.
    """
    changed = seen.fingerprint.told_differences(fingerprint)
    if changed:
        raise JobChangedError(
            f"another command gave job {seen.job_id} other content: its {changed} changed since this command "
            "looked for the job, and this command has run no row. `dray run` with another --job-id, or with "
            "none, starts a new job"
        )


def _replace_untaken(tx: Tx, job: Job, fingerprint: Fingerprint, settings: Mapping[str, Any]) -> bool:
    undriven = or_(jobs.c.driver_owner.is_(None), jobs.c.driver_until <= tx.now)
    replaced = tx.execute(
        update(jobs)
        .where(jobs.c.job_key == job.key, jobs.c.total.is_(None), undriven)
        .values(
            fingerprint=asdict(fingerprint),
            settings=dict(settings),
            created_at=tx.now,
            updated_at=tx.now,
            epoch=jobs.c.epoch + 1,
            driver_owner=None,
            driver_until=None,
            cancel_requested=False,
            cancelled_at=None,
            summary={},
        )
    )
    if replaced.rowcount != 1:
        return False
    # Read behind the update, which holds the row: a driver may have taken a folder since the job was found.
    info = tx.execute(select(jobs.c.info).where(jobs.c.job_key == job.key)).scalar_one()
    lasting = {key: info[key] for key in LASTING if key in info}
    tx.execute(update(jobs).where(jobs.c.job_key == job.key).values(info=lasting))
    return True


def _insert(tx: Tx, job_id: str, fingerprint: Fingerprint, settings: Mapping[str, Any]) -> Job:
    statement = plain_insert(jobs).values(
        job_id=job_id,
        state=JobState.VALIDATING.value,
        cancel_requested=False,
        created_at=tx.now,
        updated_at=tx.now,
        fingerprint=asdict(fingerprint),
        settings=dict(settings),
        summary={},
        info={},
    )
    try:
        with tx.connection.begin_nested():
            return job_of(tx.execute(statement.returning(jobs)).one())
    except IntegrityError:  # another process created it between the look and the insert
        winner = find(tx, job_id)
        if winner is None:
            raise
        return winner
