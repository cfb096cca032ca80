"""Tell the store why a job goes no further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dray.errors import (
    CancelledError,
    ExpiredError,
    JobChangedError,
    JobFailedError,
    JobPausedError,
    StoreError,
)
from dray.job.keeping import kept
from dray.job.opening import OpenJob
from dray.store import JobState, open_store

_ANSWERED = (JobState.COMPLETED, JobState.EXPIRED)


@contextmanager
def driving(job: OpenJob) -> Iterator[None]:
    """Keep the driver's lease for the block, from the job's opening to its last file.

    An error in it ends the job in the store, with its reason, and gives the lease back.
    """
    try:
        with kept(job):
            yield
    except BaseException as error:
        note_failure(job, error, release=True)
        raise


def note_failure(job: OpenJob, error: BaseException, *, release: bool = False) -> None:
    """Put the job to rest, upon which its shards stop; ``release`` also gives the driver's lease back.

    A lost lease or store leaves that to the next driver.
    """
    if not isinstance(error, Exception):
        return  # a signal: the job is resumed by whoever comes next
    # What the table of causes and the store say is for people, and quotes nothing.
    told = isinstance(error, JobChangedError | JobFailedError | StoreError | CancelledError | ExpiredError)
    reason = str(error) if told else type(error).__name__
    with suppress(StoreError), open_store(job.settings.store_url, create=False) as store:
        if not (isinstance(error, JobChangedError) and store.get_job(job.job_id).state in _ANSWERED):
            store.set_job_state(job.lease, _state_after(error), reason=reason)
        if release:
            store.release_job(job.lease)


def _state_after(error: Exception) -> JobState:
    if isinstance(error, CancelledError):
        return JobState.CANCELLED
    if isinstance(error, ExpiredError):
        return JobState.EXPIRED
    if isinstance(error, StoreError | JobPausedError | JobChangedError):
        return JobState.PAUSED
    return JobState.FAILED
