"""Prefect sends logs and events in the background; where a process ends soon, they are sent first."""

from __future__ import annotations

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

_SECONDS = 5.0


def flush_prefect() -> None:
    """Send what Prefect holds. Once its server is gone it would try again for a minute."""
    APILogWorker.drain_all(timeout=_SECONDS)
    EventsWorker.drain_all(timeout=_SECONDS)
