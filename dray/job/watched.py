"""Work in a thread that may hang, beside one that looks whether to go on waiting for it.

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


def started_beside(work: Callable[[], T], name: str = "dray-job") -> Future[T]:
    """``work`` in a thread that ends with the process; the future has its result or its error.

    What the caller's context holds, as the run that Prefect and its loggers take it for, the thread has too.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a caller may stop waiting; the thread goes on
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_fill, future, work), name=name, daemon=True).start()
    return future


def awaited(future: Future[T], look: Callable[[], None], every: float = _LOOK_EVERY) -> T:
    """Its result. ``look`` is called ``every`` so many seconds; what it raises ends the wait."""
    while not wait([future], timeout=every).done:
        look()
    return future.result()


def watched(
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
    future = started_beside(work, "dray-heeded")
    try:
        return awaited(future, look, every)
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
