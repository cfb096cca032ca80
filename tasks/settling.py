"""At the end of a run, no task of it is left "Running" in Prefect.

Tasks tell Prefect of their states by events. An event that is sent while Prefect's server is away, or just
before it is restarted, is lost. And a task whose process dies sends none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.states import Completed

from dray.job.options.request import JobRequest
from dray.job.options.spelling import in_parameters
from tasks.flushing import flush_prefect

_SECONDS = 5.0  # for events that are on their way

SHORT_SECONDS = 1.0
"""The same where the run has failed: without its head, Ray ends this process in some seconds."""

_LOOK_EVERY = 0.1
_PAGE = 200

_OPEN = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
_UNKNOWN = "Prefect did not hear of its end; dray's store knows how it ended"


class _End(NamedTuple):
    """How a task ended, in Prefect's words."""

    type: StateType
    name: str | None
    message: str | None


_MOST = 50_000  # tasks that are remembered; of more, the first are forgotten

_ends: dict[UUID, _End] = {}  # how the tasks of this process's runs ended, the latest of them

P = ParamSpec("P")
R = TypeVar("R")


def step(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A step of the run as a task in this process, tried once whatever Prefect's settings say of tasks.

    How it ends is noted, whatever becomes of its events.
    """

    def as_step(work: Callable[P, R]) -> Callable[P, R]:
        made = task(
            name=name.replace(" ", "-"),
            task_run_name=name,
            retries=0,
            persist_result=False,
            cache_policy=NO_CACHE,
        )(in_parameters(JobRequest)(work))

        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            state: State[R] = made(*args, **kwargs, return_state=True)
            if state.state_details.task_run_id is not None:
                note_end(state.state_details.task_run_id, state)
            return state.result()

        return run

    return as_step


def note_end(task_run: UUID, state: State) -> None:
    """A task of this process's run has ended so. Its result is not kept: a service runs job after job."""
    _ends[task_run] = _End(state.type, state.name, state.message)
    while len(_ends) > _MOST:
        del _ends[next(iter(_ends))]


def settle_tasks(seconds: float = _SECONDS) -> None:
    """Set the state of each task of this run that has ended, and of which Prefect has not heard.

    Events that are on their way have so many ``seconds``.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    flush_prefect()
    try:
        with get_client(sync_client=True) as client:
            left = _left(client, context.flow_run, seconds)
            for task_run in left:
                client.set_task_run_state(task_run.id, _end_of(task_run), force=True)
    except Exception as error:  # noqa: BLE001  states are for people; no job depends on one
        get_run_logger().warning("states of tasks are not in Prefect: %s", type(error).__name__)
        return
    if left:
        get_run_logger().info("told Prefect how %d tasks ended, of which it had not heard", len(left))


def _left(client: SyncPrefectClient, flow_run: FlowRun, seconds: float) -> list[TaskRun]:
    """Tasks that Prefect takes for unfinished, once nothing that was sent can change that.

    Not those of a later try: the run may go on in another process while this one still leaves its cluster.
    """
    deadline = time.monotonic() + seconds
    while True:
        open_ones = _unfinished(client, flow_run.id)
        found = [one for one in open_ones if one.flow_run_run_count <= flow_run.run_count]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_EVERY)


def _unfinished(client: SyncPrefectClient, flow_run: UUID) -> list[TaskRun]:
    found: list[TaskRun] = []
    while True:
        page = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])),
            task_run_filter=TaskRunFilter(
                state=TaskRunFilterState(name=None, type=TaskRunFilterStateType(any_=_OPEN))
            ),
            limit=_PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < _PAGE:
            return found


def _end_of(task_run: TaskRun) -> State:
    known = _ends.get(task_run.id)
    if known is None:
        return Completed(name="Ended", message=_UNKNOWN)
    return State(type=known.type, name=known.name, message=known.message)
