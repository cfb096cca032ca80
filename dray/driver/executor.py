"""Where shard tasks run: a seam of the driver. The other one is the observers of ``events.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dray.shard.task import TaskResult
from dray.shard.work import ShardWork


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """The end of a shard's task: its ``result``; or ``error``, which the job ends with; or it ``crashed``.

    A task crashed whose process died: no process holds the shard's lease then. One whose process lives, and
    that did not come to its own end, crashed by the exception of the class ``cause``.
    """

    number: int
    result: TaskResult | None = None
    error: BaseException | None = None
    crashed: bool = False
    cause: str | None = None


class Executor(Protocol):
    """Runs shard tasks, each in a process or thread of its own. Only the driver's thread calls it."""

    def start(self, stable_resource: str) -> None:
        """Tasks may be submitted from now on; they run on nodes that have this resource of the cluster."""

    def submit(self, work: ShardWork) -> None:
        """Start a shard's task; returns at once. A shard has one task at a time."""

    def poll(self, seconds: float) -> list[TaskEnd]:
        """The tasks that have ended; waits for the first for at most ``seconds``."""

    def cancel(self, number: int, reason: str) -> None:
        """Give up a task that stands still: its end is not reported. ``reason`` is for people."""

    def close(self) -> None:
        """End what is left: tasks of a job at rest end by themselves, within seconds."""
