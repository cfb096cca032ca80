"""Run work in a thread that may hang, while the caller looks for reasons to stop waiting.

So a run goes on to hear signals and to look at its cluster, and ingest to heed a cancel.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_LOOK_EVERY = 1.0  # seconds

T = TypeVar("T")


def start_in_thread(work: Callable[[], T], name: str = "dray-job") -> Future[T]:
    """``work`` in a thread that ends with the process; the future has its result or its error.

    What the caller's context holds, as the run that Prefect and its loggers take it for, the thread has too.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a caller may stop waiting; the thread goes on
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_fill, future, work), name=name, daemon=True).start()
    return future


def wait_watching(future: Future[T], look: Callable[[], None], every: float = _LOOK_EVERY) -> T:
    """Its result. ``look`` is called ``every`` so many seconds; what it raises ends the wait."""
    while not wait([future], timeout=every).done:
        look()
    return future.result()


def run_watched(
    work: Callable[[], T],
    *,
    stop: Callable[[], None],
    look: Callable[[], None],
    every: float,
    patience: float,
) -> T:
    """Run ``work`` in a thread, and give up on it when ``look``, called ``every`` so many seconds, raises.

    ``stop`` asks it to end. It may hang in a read that hears nothing; this waits ``patience`` seconds for it.
    """
    future = start_in_thread(work, "dray-heeded")
    try:
        return wait_watching(future, look, every)
    except BaseException:
        if not future.done():
            stop()
            wait([future], timeout=patience)
        raise


def _fill(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  thread edge: raised where the result is awaited
        future.set_exception(error)
