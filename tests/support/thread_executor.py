"""Shard tasks as threads of the test's own process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from dray.driver.executor import TaskEnd
from dray.errors import DrayError, JobFailedError, raised_at
from dray.shard.task import TaskResult, run_task
from dray.shard.work import Replicas, ShardWork

_logger = logging.getLogger(__name__)

_END_SECONDS = 5.0


class ThreadExecutor:
    """A thread for each task. ``run`` does one, here or in another process."""

    def __init__(self, replicas: Replicas, *, run: Callable[[ShardWork], TaskResult] | None = None) -> None:
        self._run = run or (lambda work: run_task(work, replicas, _logger.info))
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="dray-shard")
        self._running: dict[Future[TaskResult], int] = {}

    def start(self, stable_resource: str) -> None:
        """Nothing: this process is where tasks run."""

    def submit(self, work: ShardWork) -> None:
        """Start a shard's task."""
        self._running[self._threads.submit(self._run, work)] = work.shard.number

    def poll(self, seconds: float) -> list[TaskEnd]:
        """The tasks that have ended; waits for the first for at most ``seconds``."""
        if not self._running:
            time.sleep(seconds)
            return []
        done, _ = wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        return [_end(self._running.pop(future), future) for future in done]

    def cancel(self, number: int, reason: str) -> None:
        """Forget the task: a thread cannot be ended, and what it writes later is fenced."""
        for future in [future for future, of in self._running.items() if of == number]:
            del self._running[future]

    def close(self) -> None:
        """Wait a little for what is left."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        wait(self._running, timeout=_END_SECONDS)


def _end(number: int, future: Future[TaskResult]) -> TaskEnd:
    error = future.exception()
    if error is None:
        return TaskEnd(number=number, result=future.result())
    if isinstance(error, DrayError):
        return TaskEnd(number=number, error=error)
    failed = JobFailedError(f"shard {number} failed: {type(error).__name__}{raised_at(error)}")
    failed.__cause__ = error
    return TaskEnd(number=number, error=failed)
