"""The flow run that drove the job last. A Cancel of it while it only waited reached no process of dray."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State

from dray.errors import StoreError
from dray.job.open_job import OpenJob, reopen
from dray.store import JobState
from tasks.prefect_run import Wish, callers, in_deployment, wish_in

_RUN = "flow_run"  # in the job's info: the run's id, and the epoch of its lease
# What Prefect says of a run that it cancels itself, since its deployment's ``CANCEL_NEW`` had no slot for it.
_NO_SLOT = "Deployment concurrency limit reached."


def note_run(job: OpenJob) -> None:
    """Keep which run drives the job. Only a deployment's can be suspended, or started again later."""
    if not in_deployment():
        return
    noted = {"id": str(runtime.flow_run.id), "epoch": job.lease.epoch}
    with suppress(StoreError), reopen(job) as store:
        store.merge_job_info(job.lease, {_RUN: noted})


def cancelled_since(job: OpenJob) -> datetime | None:
    """When a user cancelled the run that drove this job last, which left it unfinished and not cancelled.

    Such a run was suspended, waited to be started again, or had lost its process. None also where Prefect
    cannot say it: its server is away, or does not know the run.
    """
    if job.found is None or job.found.answered or job.found is JobState.CANCELLED:
        return None
    try:
        with reopen(job) as store:
            noted = store.get_job(job.job_id).info.get(_RUN) or {}
    except StoreError:
        return None
    if noted.get("epoch") != job.lease.epoch - 1:  # another driver had it since
        return None
    try:
        return _cancelled_at(UUID(noted["id"]))
    except Exception:  # noqa: BLE001  whatever the API's trouble is, the job goes on
        return None


def _cancelled_at(run: UUID) -> datetime | None:
    """When a user cancelled the run, or one above it that it had not come to its end without."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        if wish_in(state) is not Wish.CANCEL and state is not None and state.is_final():
            return None  # what happened to its caller later is no word on this job
        states = [state, *(client.read_flow_run(caller).state for caller in callers(run))]
    return max((one.timestamp for one in states if one is not None and _by_user(one)), default=None)


def _by_user(state: State) -> bool:
    return wish_in(state) is Wish.CANCEL and state.message != _NO_SLOT
