"""Prefect sends logs and events in the background; where a process ends soon, they are sent first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prefect._internal.concurrency.threads import get_global_loop
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

_SECONDS = 5.0
_WORKERS = (APILogWorker, EventsWorker)


def flush_prefect() -> None:
    """Send what Prefect holds. Once its server is gone it would try again for a minute.

    From threads of its own: a caller with a running event loop would be given coroutines to await.
    """
    threads = [
        threading.Thread(target=worker.drain_all, kwargs={"timeout": _SECONDS}, daemon=True)
        for worker in _WORKERS
    ]
    with _unwarned():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _forget_ended()


@contextmanager
def _unwarned() -> Iterator[None]:
    """In the block, Prefect does not warn that it still sends what it was told to send."""
    loggers = [logging.getLogger(worker.__name__) for worker in _WORKERS]
    for logger in loggers:
        logger.addFilter(_is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Still processing items")


def _forget_ended() -> None:
    """Let go of services that have ended: a flush ends those that there are, and the next task has new ones.

    Prefect keeps each until the process exits, to end it then. With its clients that is 2 MB for each shard
    of a worker process. Where Python or Prefect have other names for the lists, they stay as they are.
    """
    for owner, name in ((threading, "_threading_atexits"), (get_global_loop(), "_on_shutdown")):
        kept: list[Any] = getattr(owner, name, [])
        for call in list(kept):
            method = getattr(call, "func", None) or getattr(call, "fn", None)
            if _has_ended(getattr(method, "__self__", None)):
                with suppress(ValueError):  # another thread flushes, too
                    kept.remove(call)


def _has_ended(service: object) -> bool:
    done = getattr(service, "_done_event", None) if isinstance(service, _WORKERS) else None
    return done is not None and done.is_set()
