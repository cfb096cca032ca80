"""The rates of a running job in the store: its driver writes them, ``dray status`` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.report import Pulse
from dray.store import Job

PACE_EVERY = 10.0
"""Seconds between two writes of the driver."""
_STALE_SECONDS = 45.0  # a driver that missed four of them says nothing about now

_KEY = "pace"  # in the job's info


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Rates over the last minute, per second."""

    rows: float
    tokens: float


def pace_of(pulse: Pulse, *, at: float) -> dict[str, Any]:
    """What the driver keeps in the job's info; ``at`` is the store's time in seconds since 1970."""
    return {_KEY: {"at": at, "rows": pulse.rows_per_second or 0.0, "tokens": pulse.tokens_per_second or 0.0}}


def pace(job: Job, *, now: float) -> Pace | None:
    """The rates that the job's driver wrote last; None where it wrote none lately (``now``: the store's)."""
    kept = job.info.get(_KEY)
    if job.state.at_rest or not kept or now - kept["at"] > _STALE_SECONDS:
        return None
    return Pace(rows=kept["rows"], tokens=kept["tokens"])
