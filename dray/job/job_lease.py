"""Keep the driver's lease while something takes long: reading input, starting engines, writing outputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dray.errors import FencedError, StoreError
from dray.job.open_job import OpenJob, reopen


@contextmanager
def job_lease_kept(job: OpenJob) -> Iterator[None]:
    """Renew the lease every quarter of its time, in a thread, for as long as the block runs."""
    over = threading.Event()
    thread = threading.Thread(target=_renew, args=(job, over), name="dray-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _renew(job: OpenJob, over: threading.Event) -> None:
    while not over.wait(job.lease.ttl / 4):
        try:
            with reopen(job) as store:
                store.renew_job(job.lease)
        except FencedError:
            return  # another driver has the job: the next write of this one says so
        except StoreError:
            continue  # it is away; the driver's next write reports it
