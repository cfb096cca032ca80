"""What a job's driver decided about replicas: kept in the job's info, for its report."""

from __future__ import annotations

from typing import Any

from dray.store import Job

KEPT = "capacity"
MOST = 200
"""Decisions that are kept: the last ones."""


def decisions_of(job: Job) -> list[dict[str, Any]]:
    """The decisions, each with ``at`` (seconds since 1970, of the store) and ``line``."""
    return list(job.info.get(KEPT) or ())
