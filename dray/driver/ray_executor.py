"""Shard tasks as plain Ray tasks on the cluster's stable nodes: nothing of Prefect's is needed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dray.cluster.base import STABLE_SHARE
from dray.driver.executor import TaskEnd
from dray.engine.ray_errors import not_imported
from dray.errors import DrayError, JobFailedError, noted_at
from dray.shard.task import RayReplicas, TaskResult, run_task
from dray.shard.work import ShardWork

_END_SECONDS = 5.0

_ADVICE = "give the nodes the driver's version of dray, then `dray resume JOB` goes on"


def stable_options(resource: str) -> dict[str, Any]:
    """Ray's options of shard tasks. Ray's own retries are off: exactly one layer retries."""
    return {"max_retries": 0, "num_cpus": 0, "resources": {resource: STABLE_SHARE}}


def ended_of(running: Iterable[Any], seconds: float) -> list[Any]:
    """All of these tasks of Ray's that have ended; waits for the first for at most ``seconds``.

    Many end at once where a job is cancelled: the driver looks at everything else between two calls.
    """
    import ray

    ended, left = ray.wait(list(running), num_returns=1, timeout=seconds)
    more = ray.wait(left, num_returns=len(left), timeout=0)[0] if ended and left else []
    return [*ended, *more]


class RayExecutor:
    """A Ray task for each shard. Why its attempts ended early comes with its result."""

    def __init__(self) -> None:
        self._running: dict[Any, int] = {}
        self._task: Any = None

    def start(self, stable_resource: str) -> None:
        """Tasks run on nodes that have this resource."""
        import ray

        self._task = ray.remote(_run).options(name="shard", **stable_options(stable_resource))

    def submit(self, work: ShardWork) -> None:
        """Start a shard's task."""
        self._running[self._task.remote(work)] = work.shard.number

    def poll(self, seconds: float) -> list[TaskEnd]:
        """The tasks that have ended; waits for the first for at most ``seconds``."""
        if not self._running:
            time.sleep(seconds)
            return []
        ended = ended_of(self._running, seconds)
        return [_end(self._running.pop(reference), reference) for reference in ended]

    def cancel(self, number: int, reason: str) -> None:
        """End the task's process."""
        import ray

        for reference in [reference for reference, of in self._running.items() if of == number]:
            del self._running[reference]
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)

    def close(self) -> None:
        """Wait a little for what is left, and end it."""
        import ray

        left = list(self._running)
        if left:
            _, left = ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)
        for reference in left:
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)


def _run(work: ShardWork) -> TaskResult:
    """In a process of Ray's on a stable node."""
    return run_task(work, RayReplicas(), lambda line: None)


def _end(number: int, reference: Any) -> TaskEnd:
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
