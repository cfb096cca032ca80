"""Tell the store why a job goes no further."""

from __future__ import annotations

from contextlib import suppress

from dray.errors import CancelledError, JobFailedError, JobPausedError, StoreError, StoreFatalError
from dray.job.opening import OpenJob
from dray.store import JobState, open_store


def note_failure(job: OpenJob, error: BaseException, *, release: bool = False) -> None:
    """Put the job to rest, upon which its shards stop; ``release`` also gives the driver's lease back.

    A lost lease or store leaves that to the next driver.
    """
    if not isinstance(error, Exception):
        return  # a signal: the job is resumed by whoever comes next
    # What the table of causes says is for people, and quotes nothing.
    reason = str(error) if isinstance(error, JobFailedError) else type(error).__name__
    with suppress(StoreError), open_store(job.settings.store_url, create=False) as store:
        store.set_job_state(job.lease, _state_after(error), reason=reason)
        if release:
            store.release_job(job.lease)


def _state_after(error: Exception) -> JobState:
    if isinstance(error, CancelledError):
        return JobState.CANCELLED
    if isinstance(error, StoreFatalError | JobPausedError):
        return JobState.PAUSED
    return JobState.FAILED
