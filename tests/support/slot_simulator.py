"""How long rows take in an engine that runs so many at a time: a forecast of the end of a job."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def makespan(steps: Iterable[float], slots: int) -> float:
    """When the last row ends, if each takes the next free slot for its ``steps``, in their order."""
    free = [0.0] * slots
    for one in steps:
        heapq.heapreplace(free, free[0] + one)
    return max(free)
