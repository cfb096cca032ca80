"""Which job a query asks for: its database changes, and nothing in its text says so.

A job that is not over goes on with the rows that it has taken in, whatever the query gives by now. For one
that is over, the query is asked again. Where it gives other rows, these are another job: ``query-1f…``, then
``query-1f….2``, and so on, unless the user has named the one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dray.errors import InputError, JobChangedError
from dray.job.beginning.identity import derived_job_id
from dray.job.options.settings import JobSettings
from dray.job.watched import run_watched
from dray.requests.ingest import asked_by
from dray.requests.pulse import ReadingPulse
from dray.requests.sources import SqlQuery
from dray.store import Fingerprint, Job, Store, store_option

ASKED = "asked"
"""Where the ``info`` of a query's job has the digest of the rows that it took in."""

_LOOK_EVERY = 0.2  # seconds
_STOP_SECONDS = 10.0


class AskedJob(NamedTuple):
    """The id of the job that is asked for, the job if the store has it, and the one whose rows are older."""

    job_id: str
    known: Job | None
    older: str | None = None


def asked_job(store: Store, settings: JobSettings, fingerprint: Fingerprint, *, resume: bool) -> AskedJob:
    """The job that the settings ask for; ``resume`` takes the last one, without another look at its query.

    Raises:
        JobChangedError: the user named a job that is over, and its query gives other rows by now. Without an
            id column, the same ones in another order are others.
        InputError: a job is over, and its query cannot be read any more.
    """
    job_id = settings.job_id or derived_job_id(settings, fingerprint)
    known = known_job(store, settings, fingerprint)
    if not isinstance(settings.source, SqlQuery):
        return AskedJob(job_id, known)
    if known is None or resume or known.fingerprint != fingerprint or not _is_over(store, known):
        return AskedJob(known.job_id if known else job_id, known)
    if _asked_now(settings, known) == known.info.get(ASKED):
        return AskedJob(known.job_id, known)
    if settings.job_id is not None:
        where = store_option(settings.store_url)
        raise JobChangedError(
            f"job {job_id} is {known.state}, and its query gives other rows by now{order_told(settings)}; "
            "name another --job-id to ask for them, or write the outputs of this job again with "
            f"`dray resume {job_id}{where}`"
        )
    return AskedJob(f"{job_id}.{_number(job_id, known) + 1}", None, older=known.job_id)


def known_job(store: Store, settings: JobSettings, fingerprint: Fingerprint) -> Job | None:
    """The job that the store has under the id of the settings; of several over one query, the last.

    The user may have deleted any of those, also the first.
    """
    job_id = settings.job_id or derived_job_id(settings, fingerprint)
    if settings.job_id is not None or not isinstance(settings.source, SqlQuery):
        return store.find_job(job_id)
    ours = [job for job in store.numbered_jobs(job_id) if _number(job_id, job)]
    return max(ours, key=lambda job: _number(job_id, job), default=None)


def order_told(settings: JobSettings) -> str:
    """Says that the order may be all that differs, where answers know their rows by nothing else."""
    if settings.source.shape.id_column is not None:
        return ""
    return ", or the same ones in another order (give a query an ORDER BY, or name an --id-column)"


def _number(first: str, job: Job) -> int:
    """Which one it is of the jobs over one query, from 1; 0 for a job of another kind of name."""
    found = re.fullmatch(rf"{re.escape(first)}(?:\.([2-9]|[1-9]\d+))?", job.job_id, re.ASCII)
    return int(found[1] or 1) if found else 0


def _is_over(store: Store, job: Job) -> bool:
    """Whether every row has its outcome, and its files were written."""
    return job.state.answered and not store.counts(job.job_id).pending


def _asked_now(settings: JobSettings, job: Job) -> str | None:
    """The digest of the rows that the query gives by now."""
    pulse = ReadingPulse()

    def work() -> str | None:
        return asked_by(
            settings.source,
            defaults=settings.defaults,
            limits=settings.limits,
            options=settings.objects,
            pulse=pulse,
        )

    try:
        return run_watched(
            work, stop=pulse.stop, look=pulse.refuse_silence, every=_LOOK_EVERY, patience=_STOP_SECONDS
        )
    except InputError as error:
        where = store_option(settings.store_url)
        advice = (
            f"job {job.job_id} is {job.state}: `dray resume {job.job_id}{where}` writes its outputs again, "
            "and does not ask the database"
        )
        raise InputError(error.problems, total=error.total, advice=advice) from None
