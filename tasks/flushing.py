"""Prefect sends logs and events in the background; where a process ends soon, they are sent first."""

from __future__ import annotations

import threading

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

_SECONDS = 5.0


def flush_prefect() -> None:
    """Send what Prefect holds. Once its server is gone it would try again for a minute.

    From threads of its own: a caller with a running event loop would be given coroutines to await.
    """
    threads = [
        threading.Thread(target=worker.drain_all, kwargs={"timeout": _SECONDS}, daemon=True)
        for worker in (APILogWorker, EventsWorker)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
