"""Tell the store why a job goes no further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.exceptions import Pause, TerminationSignal

from dray.driver.resting import put_to_rest
from dray.errors import DrayError, StoreError
from dray.job.job_lease import job_lease_kept
from dray.job.open_job import OpenJob, reopen
from tasks.heeding import SUSPENDED, AskedOfRun, suspended
from tasks.prefect_run import Wish, is_cancelled
from tasks.stopping import rest_cancelled


@contextmanager
def driving(job: OpenJob, heard: AskedOfRun) -> Iterator[None]:
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
        note_failure(job, end)
        if end is not error:
            raise end from error
        raise


def note_failure(job: OpenJob, error: BaseException) -> None:
    """Put the job to rest, upon which its shards stop, and give the driver's lease back.

    A lost lease or store leaves that to the next driver. So does a signal without a cancel of the run: this
    machine is then being taken away, and the next driver resumes the job. Ctrl-C and Prefect's timeout leave
    a process that lives: the job is cancelled, and the same call goes on with it.
    """
    if isinstance(error, Exception):
        return put_to_rest(job, error, release=True)
    if isinstance(error, Pause):
        return _rest_suspended(job)
    if not isinstance(error, TerminationSignal):
        why = f"its run was ended ({type(error).__name__})"
        return rest_cancelled(job, release=True, for_good=False, reason=why)
    return rest_cancelled(job, release=True) if is_cancelled() else None


def _rest_suspended(job: OpenJob) -> None:
    with suppress(StoreError), reopen(job) as store:
        store.pause_job(job.lease, reason=SUSPENDED)
        store.release_job(job.lease)
