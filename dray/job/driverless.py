"""Jobs whose driver is gone: they look alive, and nothing moves until a user resumes or cancels them."""

from __future__ import annotations

from dray.owner import is_gone
from dray.store import Job, Store
from dray.wording import duration

INPUT_REFUSED = "the input was refused"
"""How the reason of a job begins whose input cannot be used."""


def no_driver(job: Job, now: float) -> str | None:
    """Why nothing moves a job that is not at rest; None where a driver works on it.

    ``now`` is the store's time in seconds since 1970. A lease that is live is believed, unless its holder was
    a process of this machine that is not there any more.
    """
    if job.state.at_rest:
        return None
    if job.driver is None or job.driver_until is None:
        return "no driver: its lease was given back"
    if job.driver_until <= now:
        return f"no driver: its lease ended {duration(now - job.driver_until)} ago"
    if is_gone(job.driver):
        return "no driver: its process on this machine is gone"
    return None


def is_undriven(job: Job, now: float) -> bool:
    """Whether a job that is not at rest belongs to no driver: no lease, or one that is over.

    ``now`` is as in :func:`no_driver`. A lease that is live is waited for, even where its holder has died: a
    supervisor may start the driver again.
    """
    return not job.state.at_rest and (job.driver_until is None or job.driver_until <= now)


def cancel_or_ask(store: Store, job_id: str) -> bool:
    """Cancel the job at once where no driver is there to do it, and ask the driver otherwise.

    Returns:
        Whether it was cancelled at once.
    """
    store.request_cancel(job_id)
    return store.cancel_undriven(job_id, is_gone=is_gone)
