"""Cancel the run of a job that this process drives, also where the store is away."""

from __future__ import annotations

import logging
import time

from dray.errors import FencedError, StoreError
from dray.failures.rules import STORE_PATIENCE
from dray.job.open_job import OpenJob, reopen

CANCEL_SECONDS = STORE_PATIENCE
"""How long a cancel waits for a store that does not answer: as long as the job itself does."""

_ASK_EVERY = 1.0  # seconds
_PATIENCE = 2.0  # seconds for one try

_logger = logging.getLogger(__name__)


def cancel(job: OpenJob, *, seconds: float = CANCEL_SECONDS, for_good: bool = True) -> None:
    """Ask for the job to stop, again and again until the store answers, for ``seconds`` at most.

    Only this process's run of it is meant. ``for_good`` is as in :meth:`Store.request_cancel`.

    Raises:
        FencedError: another driver has taken the job, which goes on there.
        StoreError: the store has not answered in time; nothing is cancelled.
    """
    deadline = time.monotonic() + seconds
    said = False
    while True:
        try:
            with reopen(job, patience=_PATIENCE) as store:
                return store.request_cancel(job.job_id, for_good=for_good, by=job.lease)
        except FencedError:
            raise
        except StoreError as error:
            if time.monotonic() + _ASK_EVERY > deadline:
                raise
            if not said:
                told = "job %s: the store does not take the cancel yet (%s); it is asked again until it does"
                _logger.warning(told, job.job_id, type(error).__name__)
            said = True
        time.sleep(_ASK_EVERY)
