"""Work in a thread that may hang, beside one that looks whether to go on waiting for it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  thread edge: raised below
            errors.append(error)
        done.set()

    context = contextvars.copy_context()  # loggers find the run by it
    threading.Thread(target=context.run, args=(run,), name="dray-heeded", daemon=True).start()
    try:
        while not done.wait(every):
            look()
    except BaseException:
        stop()
        done.wait(patience)
        raise
    if errors:
        raise errors[0]
    return results[0]
