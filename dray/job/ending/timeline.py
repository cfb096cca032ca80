"""When each part of a run began and ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dray.report import JOB_LANE, Phase
from dray.steady_clock import SteadyClock

_OTHER = "other"
_PHASES = ("ingest", "cluster", "weights", "engine_start", "inference", "finalise", _OTHER)
_SHORT_GAP = 0.1  # seconds


class Timeline:
    """Collects phases from several threads; moments are seconds since 1970 by its ``clock``, the run's."""

    def __init__(self, started: float | None = None, clock: SteadyClock | None = None) -> None:
        self.clock = clock or SteadyClock()
        self.started = started or self.clock.began
        self._phases: list[Phase] = []
        self._guard = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        began = self.clock()
        try:
            yield
        finally:
            self.add(name, began, self.clock())

    def add(self, name: str, began: float, ended: float, lane: str = JOB_LANE) -> None:
        """Note a phase that was timed elsewhere."""
        with self._guard:
            self._phases.append(Phase(name=name, start=began, end=ended, lane=lane))

    def phases(self) -> tuple[Phase, ...]:
        """All phases by start, with ``other`` ones for times of the job in which it had none."""
        with self._guard:
            found = list(self._phases)
        return tuple(sorted([*found, *self._gaps(found)], key=lambda phase: phase.start))

    def _gaps(self, phases: Sequence[Phase]) -> list[Phase]:
        """Between the job's phases, and before the first: most often Prefect's server, or a wait for it."""
        own = sorted((phase for phase in phases if phase.lane == JOB_LANE), key=lambda phase: phase.start)
        gaps, reached = [], min([self.started, *(phase.start for phase in own)])
        for phase in own:
            if phase.start - reached > _SHORT_GAP:
                gaps.append(Phase(name=_OTHER, start=reached, end=phase.start))
            reached = max(reached, phase.end)
        return gaps

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase of the job, overlaps counted whole, and ``total`` from its first to now.

        The cluster's start may come before the flow's: ``dray run`` begins it as soon as it is called.
        """
        sums = dict.fromkeys(_PHASES, 0.0)
        for phase in self.phases():
            if phase.lane == JOB_LANE and phase.name in sums:
                sums[phase.name] += phase.seconds
        return {"total": self.clock() - self.began(), **sums}

    def began(self) -> float:
        """When the first phase did."""
        return min([self.started, *(phase.start for phase in self.phases())])
