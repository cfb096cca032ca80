"""What is left of Prefect's services once they have sent what they held."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.flushing import flush_prefect

pytestmark = pytest.mark.unit


@pytest.mark.heavy(one_of=3)
def test_nothing_is_left_of_the_services_that_a_flush_ended() -> None:
    """A worker process flushes after each of its shards, maybe thousands, and each task has new services."""
    flush_prefect()  # those of other tests
    found: list[weakref.ref[object]] = []
    threads = threading.active_count()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):  # nothing is sent there
        for _ in range(24):
            found += [
                weakref.ref(APILogWorker.instance()),
                weakref.ref(EventsWorker.instance(NullEventsClient)),
            ]
            flush_prefect()
    gc.collect()
    assert len(found) == len(set(map(id, found))) == 48
    assert [one for one in found if one() is not None] == []
    assert threading.active_count() <= threads + 1  # Prefect's loop has one
