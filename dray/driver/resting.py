"""Put a job to rest in its store, upon which its shard tasks stop, with the reason for which it ended."""

from __future__ import annotations

from contextlib import suppress

from dray.driver.telling.reasons import reason_of
from dray.errors import (
    CancelledError,
    DrayError,
    ExpiredError,
    JobChangedError,
    JobPausedError,
    StoreError,
)
from dray.job.open_job import OpenJob, reopen
from dray.storage.files import is_full
from dray.storage.folders import give_up
from dray.store import JobState, Store


def put_to_rest(job: OpenJob, error: BaseException, *, release: bool = False) -> None:
    """Record what ended the job; ``release`` also gives the driver's lease back, for its tasks have ended.

    A lost lease or store leaves that to the next driver. So does what is no error of the job's, such as a
    signal: this machine may be taken away, and the next driver resumes the job.
    """
    if not isinstance(error, Exception):
        return
    with suppress(StoreError), reopen(job) as store:
        record_end(store, job, error)
        if release:
            _give_folder_up(store, job)
            store.release_job(job.lease)


def _give_folder_up(store: Store, job: OpenJob) -> None:
    """Leave the output folder to the next job where this one failed before any row had an outcome.

    Who mends a query or a path has another job, whose folder this one is not to keep. The job itself takes
    the folder again when it is resumed, unless another one has it by then.
    """
    counts = store.counts(job.job_id)
    if store.get_job(job.job_id).state is not JobState.FAILED or counts.done + counts.failed:
        return
    with suppress(OSError, DrayError):
        give_up(job.settings.output, job.owner, job.settings.objects)


def record_end(store: Store, job: OpenJob, error: Exception) -> None:
    """Set the job's state and reason after ``error``; an expired job stays expired, with the reason.

    A job that is paused already stays so, with its first reason: a user suspended it, and what then fails is
    no end of the job.

    Raises:
        StoreError: the store is away, or another driver has the job.
    """
    known, state = store.get_job(job.job_id).state, state_after(error)
    if isinstance(error, JobChangedError) and known.answered:
        return
    if known is JobState.PAUSED and state in (JobState.PAUSED, JobState.FAILED):
        return
    store.set_job_state(job.lease, state, reason=reason_of(error))


def state_after(error: Exception) -> JobState:
    """What a job is that ended with ``error``."""
    if isinstance(error, CancelledError):
        return JobState.CANCELLED
    if isinstance(error, ExpiredError):
        return JobState.EXPIRED
    if isinstance(error, StoreError | JobPausedError | JobChangedError) or is_full(error):
        return JobState.PAUSED
    return JobState.FAILED
