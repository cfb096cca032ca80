"""Prefect's task runner for Ray, whose tasks' last words arrive."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

from dray.imports import lasting_imports, without


def _in_worker() -> bool:
    """Whether this is a process of Ray's, which runs shard tasks alone."""
    ray = sys.modules.get("ray")
    return (
        ray is not None and ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE
    )


with lasting_imports(), without("pandas") if _in_worker() else nullcontext():
    from prefect import Flow
    from prefect.context import FlowRunContext, TaskRunContext
    from prefect_ray import RayTaskRunner

    from tasks.flushing import flush_prefect


class FlushingRayTaskRunner(RayTaskRunner):  # type: ignore[misc]  # prefect_ray is untyped
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


def travel_light() -> None:
    """Leave in this context, which goes to the nodes with each shard task, what they can unpickle.

    Prefect sends the flow and the task that called it whole, with their functions and hooks. These may be in
    modules that only the driver has, such as the user's own; shard tasks need the flow's name alone.
    """
    TaskRunContext.__var__.set(None)  # type: ignore[arg-type]  # as where there never was one
    if (here := FlowRunContext.get()) is not None and here.flow is not None:
        flow: Flow[[], None] = Flow(_stand_in, name=here.flow.name)
        FlowRunContext.__var__.set(here.model_copy(update={"flow": flow, "parameters": {}}))


def _stand_in() -> None:
    """What a shard task is told of the flow's function."""
