"""Shard tasks as plain Ray tasks on the cluster's stable nodes: nothing of Prefect's is needed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dray.cluster.base import STABLE_SHARE
from dray.driver.executor import TaskEnd
from dray.engine.ray_errors import not_imported
from dray.errors import DrayError, JobFailedError, noted_at
from dray.shard.task import RayReplicas, TaskResult, run_task
from dray.shard.work import ShardWork

END_SECONDS = 5.0
"""For tasks to end by themselves, once the job is over."""

_ADVICE = "give the nodes the driver's version of dray, then `dray resume JOB` goes on"


def stable_options(resource: str) -> dict[str, Any]:
    """Ray's options of shard tasks. Ray's own retries are off: exactly one layer retries."""
    return {"max_retries": 0, "num_cpus": 0, "resources": {resource: STABLE_SHARE}}


class RayTasks(ABC):
    """What all executors on Ray share: the tasks that run, the look at them, and their end."""

    close_by_force = True
    """Whether :meth:`close` ends the tasks' processes. Else it interrupts the tasks, and waits once more."""

    def __init__(self) -> None:
        self._running: dict[Any, int] = {}  # the numbers of shards by Ray's references

    @abstractmethod
    def _end(self, number: int, reference: Any) -> TaskEnd:
        """How a task ended that Ray says has ended."""

    def _give_up(self, reference: Any, reason: str) -> None:
        """End the task's process. ``reason`` is for people."""
        _cancel(reference, force=True)

    def poll(self, seconds: float) -> list[TaskEnd]:
        """The tasks that have ended; waits for the first for at most ``seconds``.

        Many end at once where a job is cancelled: the driver looks at everything else between two calls.
        """
        import ray

        if not self._running:
            time.sleep(seconds)
            return []
        ended, left = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        more = ray.wait(left, num_returns=len(left), timeout=0)[0] if ended and left else []
        return self._take([*ended, *more])

    def cancel(self, number: int, reason: str) -> None:
        """End the task's process."""
        for reference in [reference for reference, of in self._running.items() if of == number]:
            del self._running[reference]
            self._give_up(reference, reason)

    def close(self) -> None:
        """Wait a little for what is left, and end it."""
        import ray

        left = list(self._running)
        if left:
            ended, left = ray.wait(left, num_returns=len(left), timeout=END_SECONDS)
            self._take(ended)
        for reference in left:
            _cancel(reference, force=self.close_by_force)
        if left and not self.close_by_force:
            ray.wait(left, num_returns=len(left), timeout=END_SECONDS)

    def _take(self, ended: Iterable[Any]) -> list[TaskEnd]:
        return [self._end(self._running.pop(reference), reference) for reference in ended]


def _cancel(reference: Any, *, force: bool) -> None:
    import ray

    with suppress(ray.exceptions.RayError):  # it would hide what the job ends with
        ray.cancel(reference, force=force)


class RayExecutor(RayTasks):
    """A Ray task for each shard. Why its attempts ended early comes with its result."""

    def start(self, stable_resource: str) -> None:
        """Tasks run on nodes that have this resource."""
        import ray

        self._task = ray.remote(_run).options(name="shard", **stable_options(stable_resource))

    def submit(self, work: ShardWork) -> None:
        """Start a shard's task."""
        self._running[self._task.remote(work)] = work.shard.number

    def _end(self, number: int, reference: Any) -> TaskEnd:
        import ray

        try:
            return TaskEnd(number=number, result=ray.get(reference))
        except ray.exceptions.RayTaskError as error:
            if (end := crashed_by(number, error)).error is not None:
                return end
            cause = error.cause
            failed = cause if isinstance(cause, DrayError) else None
            told = f"shard {number} failed: {type(cause).__name__}{noted_at(cause)}"
            return TaskEnd(number=number, error=failed or JobFailedError(told))
        except ray.exceptions.RayError as error:
            return crashed_by(number, error)


def _run(work: ShardWork) -> TaskResult:
    """Run one shard; runs in a process of Ray's on a stable node."""
    return run_task(work, RayReplicas(), lambda line: None)


def crashed_by(number: int, error: Exception) -> TaskEnd:
    """The end of a task that Ray says ``error`` of: its process died, or it did not come to its own end.

    What a node cannot import, it cannot import the next time either: the job ends with that.
    """
    import ray

    cause = getattr(error, "cause", None) or error
    if missing := not_imported(cause):
        told = f"shard {number}: its node cannot import what the driver has ({missing})"
        return TaskEnd(number=number, error=JobFailedError(f"{told}; {_ADVICE}"))
    deaths = ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.RayActorError
    return TaskEnd(
        number=number,
        crashed=True,
        cause=None if isinstance(error, deaths) else type(cause).__name__,
    )
