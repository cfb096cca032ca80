"""Run a job beside the main thread, which goes on to hear signals and to look at the cluster."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_LOOK_EVERY = 1.0  # seconds

T = TypeVar("T")


def started_beside(work: Callable[[], T]) -> Future[T]:
    """``work`` in a thread that ends with the process; the future has its result or its error.

    What the caller's context holds, as the run that Prefect takes it for, the thread has too.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_fill, future, work), name="dray-job", daemon=True).start()
    return future


def awaited(future: Future[T], look: Callable[[], None]) -> T:
    """Its result. ``look`` is called once a second; what it raises ends the wait: the work may hang."""
    while not wait([future], timeout=_LOOK_EVERY).done:
        look()
    return future.result()


def _fill(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  thread edge: raised where the result is awaited
        future.set_exception(error)
