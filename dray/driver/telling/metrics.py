"""A job's figures among Ray's own metrics, where Prometheus finds them on each node of the cluster."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dray.cluster import ClusterInfo
from dray.driver.events import (
    Event,
    NodeNoticed,
    Observer,
    Progressed,
    ReplicaChanged,
    ReplicaLooked,
    ReplicaLost,
    StoreAway,
)
from dray.engine.replica import ReplicaStatus
from dray.places import lane_of
from dray.report import Pulse
from dray.store import ReplicaState

JOB = "dray_job"
"""The label with the job's name: ``job`` is Prometheus's own, which would rename it."""

WRITE_EVERY = 5.0
"""Seconds between two writes of the gauges; Ray hands them on every 10 s."""


@dataclass(frozen=True)
class Figure:
    """A metric: its name, what it counts, and its labels besides :data:`JOB`. A ``total`` only grows."""

    name: str
    told: str
    labels: tuple[str, ...] = ()
    total: bool = False


ROWS = Figure("dray_rows", "Rows of the job by state: done, failed (error rows), open.", ("state",))
TOKENS = Figure("dray_tokens", "Prompt and completion tokens of the committed rows.")
SECONDS_LEFT = Figure("dray_seconds_left", "Seconds that the open rows take at the last minute's rate.")
REPLICAS = Figure("dray_replicas", "Replicas by state: starting, ready, leaving.", ("state",))
RUNNING = Figure("dray_replica_running_rows", "Rows inside a replica's engine.", ("replica",))
WAITING = Figure("dray_replica_waiting_rows", "Rows that wait before a replica's engine.", ("replica",))
STORE_AWAY = Figure("dray_store_away", "1 while the store does not answer the driver, else 0.")
BUSY = Figure("dray_replica_busy_seconds", "Seconds with rows in a replica's engine.", ("replica",), True)
PROMPT = Figure("dray_replica_prompt_tokens", "Prompt tokens that a replica finished.", ("replica",), True)
COMPLETION = Figure("dray_replica_completion_tokens", "Tokens that a replica wrote.", ("replica",), True)
LOSSES = Figure("dray_losses", "Replicas that were lost, by the cause the driver found.", ("cause",), True)
NOTICES = Figure("dray_node_notices", "Notices that a node will go, by their source.", ("source",), True)

FIGURES = (
    ROWS, TOKENS, SECONDS_LEFT, STORE_AWAY, REPLICAS, LOSSES, NOTICES,
    RUNNING, WAITING, BUSY, PROMPT, COMPLETION,
)  # fmt: skip
"""All that a job tells; docs/metrics.md lists them."""


class Meters(Protocol):
    """Where figures go."""

    def write(self, figure: Figure, value: float, labels: Mapping[str, str]) -> None:
        """A gauge is ``value`` from now on; a total has grown by it."""


class MetricsObserver:
    """Writes what it hears of a job to ``meters``; gauges at most every few seconds, and at the end.

    ``clock`` is in seconds, and only moves on.
    """

    def __init__(self, meters: Meters, clock: Callable[[], float] = time.monotonic) -> None:
        self._meters = meters
        self._clock = clock
        self._written = float("-inf")
        self._states: dict[str, ReplicaState] = {}
        self._statuses: dict[str, ReplicaStatus] = {}
        self._told: dict[tuple[Figure, str], tuple[float, float]] = {}  # of a process that began then

    def hear(self, event: Event) -> None:
        """Count it, or keep it for the next write."""
        match event:
            case Progressed():
                self._hear_progress(event)
            case ReplicaLooked():
                self._statuses[lane_of(event.status.name)] = event.status
            case ReplicaChanged():
                self._hear_change(event)
            case ReplicaLost():
                self._meters.write(LOSSES, 1, {"cause": event.cause})
            case NodeNoticed():
                self._meters.write(NOTICES, 1, {"source": event.notice.source})
            case StoreAway():
                self._meters.write(STORE_AWAY, 1, {})

    def _hear_change(self, event: ReplicaChanged) -> None:
        """Keep its state; one that is over has nothing in its engine any more."""
        if not event.state.over:
            self._states[event.name] = event.state
            return
        self._states.pop(event.name, None)
        lane = lane_of(event.name)
        status = self._statuses.get(lane)
        if status is not None and status.name == event.name:
            del self._statuses[lane]
            self._write_replica(lane, status, over=True)

    def _hear_progress(self, event: Progressed) -> None:
        now = self._clock()
        if not event.final and now - self._written < WRITE_EVERY:
            return
        self._written = now
        self._write_rows(event.pulse)
        self._write_states(over=event.final)
        for lane, status in self._statuses.items():
            self._write_replica(lane, status, over=event.final)

    def _write_rows(self, pulse: Pulse) -> None:
        rows = {
            "done": pulse.finished - pulse.failed,
            "failed": pulse.failed,
            "open": pulse.total - pulse.finished,
        }
        for state, count in rows.items():
            self._meters.write(ROWS, count, {"state": state})
        self._meters.write(TOKENS, pulse.tokens, {})
        self._meters.write(STORE_AWAY, 0, {})  # these figures were read there
        if (left := _seconds_left(pulse)) is not None:
            self._meters.write(SECONDS_LEFT, left, {})

    def _write_states(self, *, over: bool) -> None:
        """How many replicas are in each state; after the job there are none."""
        counts = Counter() if over else Counter(self._states.values())
        for state in ReplicaState:
            if not state.over:
                self._meters.write(REPLICAS, counts[state], {"state": state.value})

    def _write_replica(self, lane: str, status: ReplicaStatus, *, over: bool) -> None:
        """What is in an engine now, and what it did since the last write; its successor begins anew."""
        labels, stats = {"replica": lane}, status.stats
        self._meters.write(RUNNING, 0 if over else status.running, labels)
        self._meters.write(WAITING, 0 if over else status.waiting, labels)
        grown = {BUSY: stats.busy_seconds, PROMPT: stats.prompt_tokens, COMPLETION: stats.completion_tokens}
        for figure, value in grown.items():
            began, before = self._told.get((figure, lane), (status.began, 0.0))
            new = value - before if began == status.began else value
            if new > 0:
                self._meters.write(figure, new, labels)
            self._told[figure, lane] = (status.began, value)


class RayMeters:
    """Ray's metrics, with the job in each. Of a process that has joined a cluster."""

    def __init__(self, job_id: str) -> None:
        from ray.util import metrics

        self._job = {JOB: job_id}
        self._metrics = {
            one: (metrics.Counter if one.total else metrics.Gauge)(
                one.name, description=one.told, tag_keys=(JOB, *one.labels)
            )
            for one in FIGURES
        }

    def write(self, figure: Figure, value: float, labels: Mapping[str, str]) -> None:
        """Set a figure, as :class:`Meters` does."""
        metric = self._metrics[figure]
        tags = self._job | dict(labels)
        metric.inc(value, tags=tags) if figure.total else metric.set(value, tags=tags)


def metrics_of(job_id: str, info: ClusterInfo) -> list[Observer]:
    """The observer for a driver on this cluster. None on one of our own: its agents serve no metrics."""
    return [] if info.own else [MetricsObserver(RayMeters(job_id))]


def _seconds_left(pulse: Pulse) -> float | None:
    """Seconds left; infinite where the last minute finished no row, None before there is a rate."""
    if pulse.finished >= pulse.total:
        return 0.0
    return math.inf if pulse.rows_per_second == 0 else pulse.seconds_left
