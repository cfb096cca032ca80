"""What Prefect knows of this flow run: how it was started, and what people have asked of it there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TagsContext, TaskRunContext, _deployment_id
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

_RUN_OF_PROCESS = "PREFECT__FLOW_RUN_ID"  # set by Prefect's runner: of workers, containers and ``serve``
_LOOK_EVERY = 1.0


class Wish(Enum):
    """What a user asked of the run, in Prefect's UI or through its API."""

    CANCEL = "cancel"
    SUSPEND = "suspend"


@contextmanager
def in_own_run() -> Iterator[None]:
    """What the block logs is the flow run's: Prefect gives it to the run of a task that called the flow.

    Tasks in it do not have the tags of the caller's ``with tags(...)``; the flow run does. Before a task with
    tags, Prefect asks its server for slots, and where the server is away, the task fails.
    """
    token = TaskRunContext.__var__.set(None)  # type: ignore[arg-type]  # as where there never was one
    try:
        with TagsContext():
            yield
    finally:
        TaskRunContext.__var__.reset(token)


def has_process_to_itself() -> bool:
    """Whether Prefect's worker, or ``serve``, started this process for this one flow run.

    It then takes an exit code above 0 for a crash, and writes that into the run's log.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    return os.environ.get(_RUN_OF_PROCESS) == str(context.flow_run.id)


def scheduled_time() -> datetime:
    """The time for which this run was scheduled; a run that a flow calls has the time of that flow's run.

    A deployment's run has a time of its own, also where a flow started it with ``run_deployment``.

    Raises:
        Exception: the API does not answer.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return datetime.now(UTC)
    run = context.flow_run
    if run.parent_task_run_id is not None and run.deployment_id is None:
        with get_client(sync_client=True) as client:
            for caller in callers(run.id):
                run = client.read_flow_run(caller)
                if run.deployment_id is not None:
                    break
    return run.expected_start_time or datetime.now(UTC)


def of_deployment() -> bool:
    """Whether the run is one of a deployment's, which can be suspended and resumed."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def in_deployment() -> bool:
    """Whether the run is one of a deployment's, or a run below one: a schedule or a worker runs it again."""
    # runtime.deployment.id reads this, too, and asks the API where it is unset.
    return of_deployment() or _deployment_id.get() is not None


def suspension() -> State | None:
    """The state of a suspension that Prefect's engine in this process has heard of, without a call."""
    context = FlowRunContext.get()
    return None if context is None else context.flow_run_suspension_request.get_state()


def state_of_run() -> State | None:
    """The run's state as Prefect's server has it.

    Raises:
        Exception: the API does not answer; tried once, without its client's patience.
    """
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(str(runtime.flow_run.id))).state


def wish() -> Wish | None:
    """What people want: of this run, or that a run stops which called it.

    Raises:
        Exception: the API does not answer; tried once.
    """
    own = UUID(str(runtime.flow_run.id))
    with get_client(sync_client=True) as client:
        found = wish_in(client.read_flow_run(own).state)
        if found is not Wish.CANCEL:
            above = [client.read_flow_run(caller).state for caller in callers(own)]
            if Wish.CANCEL in map(wish_in, above):
                return Wish.CANCEL
    return found


@cache
def callers(run: UUID) -> tuple[UUID, ...]:
    """The flow runs above a run, from the one that called it to the first one."""
    with get_client(sync_client=True) as client:
        task_run = client.read_flow_run(run).parent_task_run_id
        above = client.read_task_run(task_run).flow_run_id if task_run is not None else None
    return () if above is None else (above, *callers(above))


def api_answers() -> bool:
    """Whether the API answers now; tried once. It does, too, where the run was deleted."""
    return _is_known() is not None


def is_deleted() -> bool:
    """Whether a user deleted the run in Prefect; not where the API does not answer, tried once."""
    return _is_known() is False


def is_told_to_cancel() -> bool:
    """Whether a user cancelled this very run; not where the API does not answer, tried once."""
    try:
        return wish_in(state_of_run()) is Wish.CANCEL
    except Exception:  # noqa: BLE001  whatever the API's trouble is
        return False


def is_told_to_stop() -> bool:
    """Whether a user cancelled or suspended this very run, or suspended one above it in this process."""
    if suspension() is not None:
        return True
    try:
        return wish_in(state_of_run()) is not None
    except Exception:  # noqa: BLE001  whatever the API's trouble is
        return False


def _is_known() -> bool | None:
    """Whether Prefect knows the run; None where the API does not answer."""
    try:
        state_of_run()
    except ObjectNotFound:
        return False
    except Exception:  # noqa: BLE001  whatever the API's trouble is
        return None
    return True


def wish_in(state: State | None) -> Wish | None:
    """What people want of a run in this state."""
    if state is None:
        return None
    if state.is_cancelling() or state.is_cancelled():
        return Wish.CANCEL
    return Wish.SUSPEND if state.is_paused() else None


def is_cancelled() -> bool:
    """Whether a user cancelled the run or one above it, as Prefect's worker or its API says."""
    from prefect._internal.control_listener import get_intent

    if get_intent() == "cancel":
        return True
    try:
        return wish() is Wish.CANCEL
    except Exception:  # noqa: BLE001  whatever the API's trouble is, the run has to end
        return False


def wait_for_api() -> bool:
    """Wait until the API answers, for about as long as Prefect's client tries one call.

    Calls on a new client do not wait for a server that is being restarted. Two to the power of
    ``PREFECT_CLIENT_MAX_RETRIES`` + 1 seconds: a minute by default, four with 7.
    """
    deadline = time.monotonic() + 2.0 ** (PREFECT_CLIENT_MAX_RETRIES.value() + 1)
    while not api_answers():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True
