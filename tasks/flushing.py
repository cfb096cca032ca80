"""Prefect sends logs and events in the background; where a process ends soon, they are sent first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
