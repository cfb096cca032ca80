"""A job that runs on its caller's event loop blocks everything else there."""

from __future__ import annotations

import asyncio

from prefect import get_run_logger


def warn_of_loop() -> None:
    """Say so, when the flow was called in a coroutine as a plain function."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    get_run_logger().warning(
        "this call blocks its caller's event loop until the job is done; "
        "`await flows.awaited.abatch_inference(...)` takes the same parameters and does not"
    )
