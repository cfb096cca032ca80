"""When each part of a run began and ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dray.report import JOB_LANE, Phase

_PHASES = ("ingest", "cluster", "weights", "engine_start", "inference", "finalise")


class Timeline:
    """Collects phases from several threads; moments are seconds since 1970."""

    def __init__(self, started: float | None = None) -> None:
        self.started = started or time.time()
        self._phases: list[Phase] = []
        self._guard = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        began = time.time()
        try:
            yield
        finally:
            self.add(name, began, time.time())

    def add(self, name: str, began: float, ended: float, lane: str = JOB_LANE) -> None:
        """Note a phase that was timed elsewhere."""
        with self._guard:
            self._phases.append(Phase(name=name, start=began, end=ended, lane=lane))

    def phases(self) -> tuple[Phase, ...]:
        """All phases by start."""
        with self._guard:
            return tuple(sorted(self._phases, key=lambda phase: phase.start))

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase of the job, overlaps counted whole, and ``total`` from its first to now.

        The cluster's start may come before the flow's: ``dray run`` begins it as soon as it is called.
        """
        sums = dict.fromkeys(_PHASES, 0.0)
        for phase in self.phases():
            if phase.lane == JOB_LANE and phase.name in sums:
                sums[phase.name] += phase.seconds
        return {"total": time.time() - self.began(), **sums}

    def began(self) -> float:
        """When the first phase did."""
        return min([self.started, *(phase.start for phase in self.phases())])
