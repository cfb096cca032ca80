"""Give rows that follow another their outcome: beside the driver while the job runs, and at its end.

What it does is one transaction a page (:mod:`dray.store.followers`), so it may be killed, or done twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dray.errors import FencedError, StoreError, StoreFatalError
from dray.job.open_job import OpenJob, reopen
from dray.job.rows.sharing import has_followers
from dray.store import Store
from dray.triggers import Point, reach

_LOOK_EVERY = 2.0  # seconds between sweeps; longer after those that found nothing, or took longer
_LONGEST_PAUSE = 30.0
_PATIENCE = 2.0  # seconds for one transaction: a driver that ends does not wait for a store that is away


def answer_followers(store: Store, job: OpenJob) -> int:
    """Give an outcome to all followers whose leader has one; how many.

    Raises:
        FencedError: another driver has the job.
        StoreError: the store is away.
    """
    if not has_followers(store.get_job(job.job_id)):
        return 0
    return sum(_sweep(store, job))


def _sweep(store: Store, job: OpenJob) -> Iterator[int]:
    after: int | None = -1
    while after is not None:
        reach(Point.FOLLOW_BEFORE)
        found = store.answer_followers(job.lease, after)
        reach(Point.FOLLOW_AFTER)
        yield found.rows
        after = found.after


@contextmanager
def followers_answered(job: OpenJob) -> Iterator[None]:
    """While the block runs, followers get their outcome soon after their leaders. In a thread of its own."""
    with reopen(job) as store:
        wanted = has_followers(store.get_job(job.job_id))
    if not wanted:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(job, stop), name="dray-followers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(job: OpenJob, stop: threading.Event) -> None:
    """A store that is away is waited for, as by the driver. Another error ends the driver, too."""
    while True:
        try:
            with reopen(job, patience=_PATIENCE) as store:
                _look_until(stop, store, job)
            break
        except (FencedError, StoreFatalError):
            break
        except StoreError:
            if stop.wait(_LONGEST_PAUSE):
                break


def _look_until(stop: threading.Event, store: Store, job: OpenJob) -> None:
    pause = _LOOK_EVERY
    while not stop.wait(pause):
        rows, began = 0, time.monotonic()
        for found in _sweep(store, job):
            rows += found
            if stop.is_set():
                return
        pause = _LOOK_EVERY if rows else min(2 * pause, _LONGEST_PAUSE)
        pause = max(pause, time.monotonic() - began)  # a sweep over millions of rows takes long by itself
