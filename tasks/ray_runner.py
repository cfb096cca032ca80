"""Prefect's task runner for Ray, whose tasks' last words arrive."""

from __future__ import annotations

from typing import Any

from prefect_ray import RayTaskRunner

from tasks.flushing import flush_prefect


class HeardRayTaskRunner(RayTaskRunner):  # type: ignore[misc]  # prefect_ray is untyped
    """Sends a task's logs and its last state before the task returns.

    Prefect sends both in the background, every two seconds; Ray ends idle worker processes with the job, so
    the log of the last shard of each worker would be lost, and its run could stay "Running" for ever.
    """

    @staticmethod
    def _run_prefect_task(*references: Any, **arguments: Any) -> Any:
        try:
            return RayTaskRunner._run_prefect_task(*references, **arguments)
        finally:
            flush_prefect()
