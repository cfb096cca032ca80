"""What a job's driver decided about replicas, and what they cost so far: kept in the job's info."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.store import Job

KEPT = "capacity"
MOST = 200  # decisions that are kept: the last ones


def with_note(spent: float, notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is kept."""
    return {"spent": round(spent, 4), "decisions": list(notes)[-MOST:]}


def spent_of(job: Job) -> tuple[float, list[dict[str, Any]]]:
    """Dollars that earlier runs spent, and their decisions."""
    kept = job.info.get(KEPT) or {}
    return float(kept.get("spent", 0.0)), list(kept.get("decisions", ()))
