"""Tell Prefect how a job began and ended: events, state messages, artifacts, no task left running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect import get_run_logger, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, Pause, TerminationSignal
from prefect.states import Cancelled, Completed, Paused

from dray.driver.outage import SHORT_PATIENCE
from dray.driver.resting import state_after
from dray.driver.telling.reasons import reason_of
from dray.driver.telling.wording import rest_line
from dray.errors import FencedError, JobBlockedError, JobChangedError, StoreError
from dray.job.ending.result import JobResult
from dray.job.open_job import OpenJob, reopen
from dray.job.options.request import JobRequest
from dray.job.options.spelling import as_parameters
from dray.store import JobState
from tasks.events import tell_of_job
from tasks.flushing import flush_prefect
from tasks.heeding import SUSPENDED
from tasks.opening import Declined
from tasks.page import show_report
from tasks.prefect_run import (
    has_process_to_itself,
    in_deployment,
    is_deleted,
    is_told_to_cancel,
    is_told_to_stop,
    of_deployment,
    suspension,
    wait_for_api,
)
from tasks.settling import SHORT_SECONDS, settle_tasks


@contextmanager
def report_lifecycle(job: OpenJob) -> Iterator[None]:
    """Tell that the job began, and, if the block does not end well, how it ended."""
    settings = job.settings
    tell_of_job(
        job.job_id,
        "started",
        {
            "resumed": job.resumed,
            "finished": job.skipped,
            "engine": settings.engine,
            "output": settings.output,
        },
    )
    try:
        yield
    except TerminationSignal:
        _tell_end(job)
        raise  # there are seconds left: Prefect's worker kills what has not ended
    except (Exception, Pause) as error:
        _tell_end(job, error)
        if not in_deployment() or wait_for_api():  # a script's user is not kept waiting
            settle_tasks(SHORT_SECONDS)
        raise


def finish_run(job: OpenJob, result: JobResult) -> State[Any]:
    """Show the report, and give the run's state, whose message says what came of the rows.

    Waits for a server of Prefect's that is being restarted: what is sent in between would be lost.
    """
    there = wait_for_api()
    if there:
        show_report(job, result)
    else:
        get_run_logger().warning("Prefect's server does not answer: the report is not in its UI")
    tell_of_job(job.job_id, result.state, _figures(result))
    if there:
        settle_tasks()
    message = message_of(result)
    if result.state == JobState.CANCELLED:
        return _cancelled(message)
    name = "Expired" if result.state == JobState.EXPIRED else "Completed"
    return Completed(name=name, message=message, data=result)


def message_of(result: JobResult) -> str:
    """What came of the rows, in one line."""
    counts = result.counts
    told = f"{counts['done']:,} done, {counts['failed']:,} failed"
    if counts["skipped"]:
        told += f" ({counts['skipped']:,} were finished before)"
    if result.state == JobState.EXPIRED:
        return f"its time is over: {told} of {counts['total']:,}"
    if result.state == JobState.CANCELLED:
        told += f" of {counts['total']:,}, all kept"
        return f"{told}; `dray resume JOB` or a retry goes on, `dray export` writes them"
    return told


def declined_state(found: Declined) -> State[Any]:
    """The state of a run that has nothing to do."""
    reason = as_parameters(found.reason, JobRequest)
    if found.cancelled or is_told_to_cancel():
        return _cancelled(reason)
    return Completed(name="Skipped", message=reason)


def finish_cancelled_run(job: OpenJob, message: str) -> State[Any]:
    """The state of a run whose job was cancelled before there was anything to write."""
    there = wait_for_api()
    _tell_end(job)
    if there:
        settle_tasks()
    return _cancelled(message)


def _cancelled(message: str) -> State[Any]:
    """The state of a cancelled run.

    Returned to Prefect's engine it becomes an error there. In a process that Prefect's worker started, that
    would be a traceback and a "crash" in the log of a run that ended as it should: there the state is set
    here, and the run left as one that Prefect has ended.
    """
    state: State[Any] = Cancelled(message=message)
    if not has_process_to_itself() or not _is_set(state):
        return state
    flush_prefect()
    left = Abort("the job was cancelled")
    left.state = state  # type: ignore[attr-defined]  # the engine's last line in the log shows it
    raise left


def _is_set(state: State[Any]) -> bool:
    """Whether Prefect has taken the run's state, whatever it was before."""
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(str(runtime.flow_run.id)), state, force=True)
    except Exception:  # noqa: BLE001  Prefect's API: its engine tries for longer
        return False
    return True


class _Delivered(BaseException):
    """Ends a run whose state Prefect's engine has, and need not send."""


def delivered(job: OpenJob, state: State[Any]) -> State[Any]:
    """The run's state, for Prefect's engine.

    If a user has deleted the run, the engine cannot send the state. If a user cancelled it when its job was
    done, Prefect would refuse the state. The engine would log a traceback, and its caller would get an error
    for a job that is done. After a Suspend it would send none, and the run would fail when the time to resume
    it is over. The engine leaves a run alone that has such a state already.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return state
    if is_deleted():
        get_run_logger().warning(
            "this flow run was deleted in Prefect; its job has ended as it would have, `%s` shows it",
            job.command("status"),
        )
    elif state.is_cancelled() or not is_told_to_stop() or not _is_set(state):
        return state
    context.flow_run.state = state
    raise _Delivered


@contextmanager
def suspended_with_caller() -> Iterator[None]:
    """Show the run as suspended if it ends because a run above it was: Prefect would leave it Running.

    Resume of the run above sets it to Running again, so the state has no timeout and awaits no worker.
    """
    try:
        yield
    except (Exception, Pause):
        if suspension() is not None and not of_deployment():
            _is_set(Paused(name="Suspended", message="the run that calls it was suspended: resume that one"))
        raise


def _figures(result: JobResult) -> dict[str, Any]:
    return {
        "total": result.counts["total"],
        "done": result.counts["done"],
        "failed": result.counts["failed"],
        "tokens": result.tokens["prompt"] + result.tokens["completion"],
        "seconds": round(result.seconds["total"], 1),
        "interruptions": result.interruptions,
        "output": result.output,
        "report": result.report,
    }


def _tell_end(job: OpenJob, error: BaseException | None = None) -> None:
    """Send the event of a job that did not come to its end: what the store says of it, or else ``error``.

    A paused job that is blocked has an event of its own, upon which no automation resumes it.
    """
    blocked = isinstance(error, JobBlockedError | JobChangedError)
    try:
        with reopen(job, patience=SHORT_PATIENCE) as store:
            kept, counts = store.get_job(job.job_id), store.counts(job.job_id)
    except StoreError:
        _tell_without_store(job, error, blocked=blocked)
        return
    if kept.epoch != job.lease.epoch:
        return  # another driver has it
    if not kept.state.at_rest:
        _tell_without_store(job, error, blocked=blocked)
        return
    what = "suspended" if (kept.reason or "").startswith(SUSPENDED) else str(kept.state)
    if blocked and kept.state is JobState.PAUSED and what != "suspended":
        what = "blocked"
    payload = {"reason": kept.reason, "total": counts.total, "done": counts.done, "failed": counts.failed}
    tell_of_job(job.job_id, what, payload)
    get_run_logger().info("%s", rest_line(job.job_id, what, counts))


def _tell_without_store(job: OpenJob, error: BaseException | None, *, blocked: bool) -> None:
    """The store is away, or did not take the job's end: both are what pauses jobs, and automations resume.

    No event where only the machine is taken away, where another driver has the job, and of a cancel or an
    expiry, which the store alone decides.
    """
    if not isinstance(error, Exception) or isinstance(error, FencedError):
        return
    state = state_after(error)
    if state in (JobState.PAUSED, JobState.FAILED):
        tell_of_job(job.job_id, "blocked" if blocked else str(state), {"reason": reason_of(error)})
