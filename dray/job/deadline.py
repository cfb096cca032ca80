"""When a job's time is over: by the store's clock or by its driver's own, whichever is later."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from dray.job.open_job import OpenJob
from dray.store import StopSignals, Store

_logger = logging.getLogger(__name__)


def stop_signals(store: Store, job: OpenJob) -> StopSignals:
    """Read whether the job is to stop; postpone an end that only the store's clock sees.

    Expiry is final, and one reading of a clock that was set forward would end every row. The store's clock
    may say that the time is over while the driver's monotonic clock has some left. The driver then postpones
    the end in the store.

    Raises:
        FencedError: another driver has the job.
    """
    signals = store.stop_signals(job.job_id)
    if not signals.stop or not signals.expired or job.due is None:
        return signals
    left = job.due - time.monotonic()
    if left <= 0:
        return signals
    store.postpone(job.lease, left)
    _logger.warning(
        "the clock of the store is past the end of the job's time, of which %.0f s are left by this machine: "
        "it was set forward, or this machine stood still; the job goes on. See to the clock before a resume",
        left,
    )
    return replace(signals, expired=False)
