"""Observers that need nothing but dray: the log, those who listen in this process, and the job's report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dray.driver.events import (
    Event,
    Observer,
    Progressed,
    ReplicaChanged,
    ReplicaLooked,
    ReplicaReady,
    ShardFinished,
    ShardSubmitted,
)
from dray.driver.replicas.handle import ReplicaStart
from dray.engine.replica import ReplicaStatus
from dray.job import current_job
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.timeline import Timeline
from dray.places import lane_of
from dray.report import Moments

_logger = logging.getLogger(__name__)

LINE_EVERY = 5.0
"""Seconds between two lines that say how far a job is."""

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class Observers:
    """Tells each of several observers. None of them may end a job: that one fails is said once."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._failing: set[int] = set()

    def hear(self, event: Event) -> None:
        """Tell all of them."""
        for observer in self._observers:
            try:
                observer.hear(event)
            except Exception as error:  # noqa: BLE001  see above
                self._note_failure(observer, error)

    def _note_failure(self, observer: Observer, error: Exception) -> None:
        if id(observer) not in self._failing:
            self._failing.add(id(observer))
            _logger.warning("%s failed: %s", type(observer).__name__, type(error).__name__)


class LogObserver:
    """Writes the events that have a text into a log; of progress, a line every few seconds.

    ``words`` says a text as the reader of the log knows it.
    """

    def __init__(self, logger: Logger, words: Callable[[str], str] = str) -> None:
        self._logger = logger
        self._words = words
        self._last_line = time.monotonic()

    def hear(self, event: Event) -> None:
        """Log it."""
        if isinstance(event, Progressed):
            self._hear_progress(event)
        elif event.text is not None:
            self._logger.log(getattr(event, "severity", event.level), "%s", self._words(event.text))

    def _hear_progress(self, event: Progressed) -> None:
        now = time.monotonic()
        if event.final or now - self._last_line > LINE_EVERY:
            self._last_line = now
            self._logger.info("%s", event.text, extra={current_job.PULSE_RECORD: not event.final})


class ListenersObserver:
    """Hands progress to those who listen in this process: the bar of the command line."""

    def hear(self, event: Event) -> None:
        """Hand it on."""
        if isinstance(event, Progressed):
            current_job.tell(event.pulse)


class ReportObserver:
    """Collects what the report says of replicas and of time.

    Events have moments by clocks of machines, which may be set: they become those of the timeline's clock.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._ahead: dict[str, float] = {}  # when each replica was asked for
        self._starts: list[ReplicaStart] = []
        self._statuses: dict[str, ReplicaStatus] = {}
        self._last_commit: float | None = None  # of the shards that gave a receipt
        self._unfinished: set[int] = set()  # shards that were started, and gave none
        self._rows: int | None = None  # that the job had finished at the last look
        self._rows_grew: float | None = None

    def hear(self, event: Event) -> None:
        """Keep it."""
        ahead = self._timeline.clock.ahead()
        if isinstance(event, ReplicaChanged):
            self._ahead.setdefault(event.name, ahead)
        elif isinstance(event, ReplicaReady):
            self._starts.append(_later(event.start, self._ahead.setdefault(event.start.name, ahead)))
        elif isinstance(event, ReplicaLooked):
            self._statuses[event.status.name] = event.status
        elif isinstance(event, ShardSubmitted):
            self._unfinished.add(event.number)
        elif isinstance(event, ShardFinished) and event.receipt is not None:
            self._unfinished.discard(event.number)
            if event.receipt.last_commit:
                self._last_commit = max(self._last_commit or 0.0, event.receipt.last_commit + ahead)
        elif isinstance(event, Progressed):
            if self._rows is not None and event.pulse.finished > self._rows:
                self._rows_grew = self._timeline.clock()
            self._rows = event.pulse.finished

    def accounts(self) -> list[ReplicaAccount]:
        """What each replica did; puts the run's phases into the timeline. Called once, at the end."""
        if not self._starts:
            return []
        for start in self._starts:
            self._timeline.add("engine_start", start.began, start.ready, lane=lane_of(start.name))
        self._note_weights()
        began = min(start.ready for start in self._starts)
        self._timeline.add("inference", began, self._last_rows())
        return [
            _account(start, self._statuses.get(start.name), self._ahead[start.name]) for start in self._starts
        ]

    def _last_rows(self) -> float:
        """When the last rows were committed, as far as is known; the present where no rows were.

        A shard that did not come to its end tells no moment. A later look at the counters then does: rows of
        the whole time count, and a driver that waited for work after them does not.
        """
        known = [self._last_commit, self._rows_grew if self._unfinished else None]
        return max((moment for moment in known if moment is not None), default=self._timeline.clock())

    def _note_weights(self) -> None:
        """When weights were fetched: for each replica as far as it ran by then, and for the job."""
        firsts = {lane_of(start.name): start for start in reversed(self._starts)}
        spans = [(lane, start, start.info.weights) for lane, start in firsts.items() if start.info.weights]
        for lane, start, (began, ended) in spans:
            if ended > start.began:
                self._timeline.add("weights", max(began, start.began), ended, lane=lane)
        # Weights that were fetched before this job are no part of it.
        own = [span for _, _, span in spans if span[0] >= self._timeline.started]
        if own:
            self._timeline.add("weights", min(began for began, _ in own), max(ended for _, ended in own))


def _later(start: ReplicaStart, seconds: float) -> ReplicaStart:
    """A start with all of its moments so much later."""
    weights = start.info.weights
    if weights is not None:
        weights = weights[0] + seconds, weights[1] + seconds
    return replace(
        start,
        began=start.began + seconds,
        process=start.process + seconds,
        ready=start.ready + seconds,
        info=replace(start.info, weights=weights),
    )


def _account(start: ReplicaStart, status: ReplicaStatus | None, ahead: float) -> ReplicaAccount:
    stats = status.stats if status else None
    return ReplicaAccount(
        name=start.name,
        node=status.node if status else "",
        engine=start.info.engine,
        version=start.info.version,
        startup=dict(start.info.timeline),
        moments=_moments(start, status, ahead),
        busy_seconds=stats.busy_seconds if stats else None,
        rows=stats.finished if stats else 0,
        tokens=stats.prompt_tokens + stats.completion_tokens if stats else 0,
        info=start.info,
        tuned=stats.tuned if stats else None,
    )


def _moments(start: ReplicaStart, status: ReplicaStatus | None, ahead: float) -> Moments:
    """When the replica got how far; the first token of a replacement is not that of this start."""
    same = status is not None and status.began + ahead == start.process
    token = status.stats.first_token_at if status is not None and same else None
    return Moments(
        asked=start.began,
        began=start.process,
        ready=start.ready,
        first_token=None if token is None else token + ahead,
        weights=start.info.weights,
    )
