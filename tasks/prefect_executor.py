"""Shard tasks as Prefect's tasks on Ray: people see one for each shard, and why it is tried again."""

from __future__ import annotations

import contextvars
import time
from contextlib import suppress
from typing import Any

import ray
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED, temporary_settings
from prefect.states import Crashed
from prefect_ray.context import remote_options

from dray.driver.executor import TaskEnd
from dray.driver.ray_executor import crashed_by, ended_of, stable_options
from dray.errors import DrayError, JobFailedError, noted_at
from dray.shard.task import Ended, TaskResult
from dray.shard.work import ShardWork
from tasks.infer_shard import infer_shard
from tasks.ray_runner import FlushingRayTaskRunner, travel_light
from tasks.settling import note_end

_END_SECONDS = 5.0
_WITH_JOB = "it was ended with the job's run"
# A worker process asks Prefect's server for its version before its first task, and the task crashes where the
# server is away. The flow run has asked already.
_UNASKED = {PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}


class PrefectExecutor:
    """A Prefect task for each shard, under RayTaskRunner, on the cluster's stable nodes."""

    def __init__(self) -> None:
        self._runner = FlushingRayTaskRunner()
        self._running: dict[Any, tuple[Any, int]] = {}

    def start(self, stable_resource: str) -> None:
        """Tasks run on nodes that have this resource, as tasks of the flow run of this context."""
        self._options = stable_options(stable_resource)
        self._context = contextvars.copy_context()  # others would be children of the task that runs by then
        self._context.run(travel_light)
        self._runner.__enter__()

    def submit(self, work: ShardWork) -> None:
        """Start a shard's task."""
        future = self._context.run(self._submit, work)
        self._running[future.wrapped_future] = (future, work.shard.number)

    def _submit(self, work: ShardWork) -> Any:
        with remote_options(**self._options), temporary_settings(_UNASKED):
            return self._runner.submit(infer_shard, parameters={"number": work.shard.number, "work": work})

    def poll(self, seconds: float) -> list[TaskEnd]:
        """The tasks that have ended; waits for the first for at most ``seconds``."""
        if not self._running:
            time.sleep(seconds)
            return []
        return [self._end(reference) for reference in ended_of(self._running, seconds)]

    def _end(self, reference: Any) -> TaskEnd:
        future, number = self._running.pop(reference)
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

    def cancel(self, number: int, reason: str) -> None:
        """End the task's process, and tell Prefect why."""
        for reference, (future, of) in list(self._running.items()):
            if of == number:
                del self._running[reference]
                with suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)
                note_end(future.task_run_id, Crashed(message=reason))

    def close(self) -> None:
        """Let tasks that are left end by themselves, because of what ended the others, or end them."""
        left = list(self._running)
        try:
            if left:
                ended, left = ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)
                for reference in ended:
                    self._end(reference)
            for reference in left:
                ray.cancel(reference)
            if left:
                ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)
        finally:
            for future, _ in self._running.values():
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
