"""Tell the store why a job goes no further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.exceptions import Pause, TerminationSignal

from dray.errors import (
    CancelledError,
    DrayError,
    ExpiredError,
    JobChangedError,
    JobFailedError,
    JobPausedError,
    StoreError,
)
from dray.job.job_lease import job_lease_kept
from dray.job.opening import OpenJob
from dray.store import JobState, Store, open_store
from tasks.heeding import SUSPENDED, Heard, suspended
from tasks.prefect_run import Wish, is_cancelled

_ANSWERED = (JobState.COMPLETED, JobState.EXPIRED)


@contextmanager
def driving(job: OpenJob, heard: Heard) -> Iterator[None]:
    """Keep the driver's lease for the block, from the job's opening to its last file.

    An error in it ends the job in the store, with its reason, and gives the lease back. What goes wrong in a
    job that was suspended ends the run as a suspended one.
    """
    try:
        with job_lease_kept(job):
            yield
    except BaseException as error:
        asked = heard.wish is Wish.SUSPEND and isinstance(error, DrayError)
        end = suspended(job) if asked else error
        note_failure(job, end, release=True)
        if end is not error:
            raise end from error
        raise


def note_failure(job: OpenJob, error: BaseException, *, release: bool = False) -> None:
    """Put the job to rest, upon which its shards stop; ``release`` also gives the driver's lease back.

    A lost lease or store leaves that to the next driver. So does a signal without a cancel of the run: this
    machine is then being taken away, and the next driver resumes the job.
    """
    wanted = isinstance(error, Pause) or (isinstance(error, TerminationSignal) and is_cancelled())
    if not wanted and not isinstance(error, Exception):
        return
    with suppress(StoreError), open_store(job.settings.store_url, create=False) as store:
        _put_to_rest(store, job, error)
        if release:
            store.release_job(job.lease)


def _put_to_rest(store: Store, job: OpenJob, error: BaseException) -> None:
    if isinstance(error, Pause):
        store.pause_job(job.lease, reason=SUSPENDED)
    elif isinstance(error, TerminationSignal):
        store.request_cancel(job.job_id, by=job.lease)
        store.set_job_state(job.lease, JobState.CANCELLED, reason="cancelled in Prefect")
    elif not (isinstance(error, JobChangedError) and store.get_job(job.job_id).state in _ANSWERED):
        # What the table of causes and the store say is for people, and quotes nothing.
        told = isinstance(
            error, JobChangedError | JobFailedError | StoreError | CancelledError | ExpiredError
        )
        store.set_job_state(
            job.lease, _state_after(error), reason=str(error) if told else type(error).__name__
        )


def _state_after(error: BaseException) -> JobState:
    if isinstance(error, CancelledError):
        return JobState.CANCELLED
    if isinstance(error, ExpiredError):
        return JobState.EXPIRED
    if isinstance(error, StoreError | JobPausedError | JobChangedError):
        return JobState.PAUSED
    return JobState.FAILED
