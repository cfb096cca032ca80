"""Shard tasks as Prefect's tasks on Ray: people see one for each shard, and why it is tried again."""

from __future__ import annotations

import contextvars
from typing import Any

import ray
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED, temporary_settings
from prefect.states import Crashed
from prefect_ray.context import remote_options

from dray.driver.executor import TaskEnd
from dray.driver.ray_executor import RayTasks, crashed_by, stable_options
from dray.errors import DrayError, JobFailedError, noted_at
from dray.shard.task import Ended, TaskResult
from dray.shard.work import ShardWork
from tasks.infer_shard import infer_shard
from tasks.ray_runner import FlushingRayTaskRunner, travel_light
from tasks.settling import note_end

_WITH_JOB = "it was ended with the job's run"
# A worker process asks Prefect's server for its version before its first task, and the task crashes where the
# server is away. The flow run has asked already.
_UNASKED = {PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}


class PrefectExecutor(RayTasks):
    """A Prefect task for each shard, under RayTaskRunner, on the cluster's stable nodes."""

    close_by_force = False  # an interrupted task tells Prefect of its end

    def __init__(self) -> None:
        super().__init__()
        self._runner = FlushingRayTaskRunner()
        self._futures: dict[Any, Any] = {}  # Prefect's, by Ray's references, of the tasks that run

    def start(self, stable_resource: str) -> None:
        """Tasks run on nodes that have this resource, as tasks of the flow run of this context."""
        self._options = stable_options(stable_resource)
        self._context = contextvars.copy_context()  # others would be children of the task that runs by then
        self._context.run(travel_light)
        self._runner.__enter__()

    def submit(self, work: ShardWork) -> None:
        """Start a shard's task."""
        future = self._context.run(self._submit, work)
        self._running[future.wrapped_future] = work.shard.number
        self._futures[future.wrapped_future] = future

    def _submit(self, work: ShardWork) -> Any:
        with remote_options(**self._options), temporary_settings(_UNASKED):
            return self._runner.submit(infer_shard, parameters={"number": work.shard.number, "work": work})

    def _end(self, number: int, reference: Any) -> TaskEnd:
        future = self._futures.pop(reference)
        try:
            ray.get(reference)
        except ray.exceptions.RayError as error:
            end = crashed_by(number, error)
            note_end(future.task_run_id, Crashed(message=str(end.error or end.cause or "its process died")))
            return end
        future.wait()
        state: State = future.state
        note_end(future.task_run_id, state)
        if state.is_completed():
            return TaskEnd(number=number, result=_result(state))
        if state.is_crashed():
            return TaskEnd(number=number, crashed=True, cause=_cause(state))
        return TaskEnd(number=number, error=_failure(state, number))

    def _give_up(self, reference: Any, reason: str) -> None:
        """End the task's process, and tell Prefect why."""
        super()._give_up(reference, reason)
        note_end(self._futures.pop(reference).task_run_id, Crashed(message=reason))

    def close(self) -> None:
        """Let tasks that are left end by themselves, because of what ended the others, or end them."""
        try:
            super().close()
        finally:
            for future in self._futures.values():
                note_end(future.task_run_id, Crashed(message=_WITH_JOB))
            self._runner.__exit__(None, None, None)


def _result(state: State) -> TaskResult:
    """The task's own; where Prefect kept none, what the state's name says."""
    found = state.result()
    if isinstance(found, TaskResult):
        return found
    return TaskResult(how=Ended(str(state.name).lower()), message=state.message or "")


def _cause(state: State) -> str:
    """The class of what ended Prefect's engine in the task's process."""
    try:
        state.result()
    except BaseException as error:  # noqa: BLE001  its class is all that is wanted
        return type(error).__name__
    return str(state.name)


def _failure(state: State, number: int) -> DrayError:
    try:
        state.result()
    except DrayError as error:
        return error
    except BaseException as error:  # noqa: BLE001  whatever it was, it failed the shard
        return JobFailedError(f"shard {number} failed: {type(error).__name__}{noted_at(error)}")
    return JobFailedError(f"shard {number} ended as {state.name}")
