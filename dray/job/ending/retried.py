"""How often a job's shards had to be tried again, and why."""

from __future__ import annotations

from dray.failures.facts import Cause
from dray.store import AttemptCause, Store

_NO_RETRY = frozenset({AttemptCause.DONE, AttemptCause.NOT_THERE, AttemptCause.CLAIMED_AGAIN, Cause.CANCEL})
"""Ends that nothing was tried again for."""


def retries(store: Store, job_id: str) -> dict[str, int]:
    """Cause to number of attempts that it ended."""
    return {cause: number for cause, number in store.causes(job_id).items() if cause not in _NO_RETRY}
