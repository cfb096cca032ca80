"""How far the job is: rows and rates for people, the pace for other processes, the share of error rows."""

from __future__ import annotations

import time
from collections.abc import Callable

from dray.driver.events import ErrorShareReached, Event, Progressed
from dray.job.open_job import OpenJob
from dray.job.pace import PACE_EVERY, pace_of
from dray.report import Meter, Pulse
from dray.store import Store

ERROR_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
"""Shares of error rows among the finished ones that are told of when they are reached."""

ERROR_ROWS = 20
"""Rows to be finished before a share of them says anything."""


class JobProgress:
    """Reads the job's counters, and tells of them."""

    def __init__(self, job: OpenJob, emit: Callable[[Event], None]) -> None:
        self._job = job
        self._emit = emit
        self._meter = Meter()
        self._shares = ErrorShare()
        self._paced = time.monotonic()

    def look(self, store: Store, *, final: bool = False) -> None:
        """Read the counters once, and tell of them; the rates go into the store now and then.

        Raises:
            StoreError: it is away.
        """
        pulse = self._pulse(store)
        if not final:
            self._keep_pace(store, pulse)
        self._emit(Progressed(pulse=pulse, final=final))
        reached = self._shares.reached(finished=pulse.finished, failed=pulse.failed)
        if reached is not None:
            self._emit(
                ErrorShareReached(
                    reached=reached, failed=pulse.failed, finished=pulse.finished, total=pulse.total
                )
            )

    def _pulse(self, store: Store) -> Pulse:
        progress = store.progress(self._job.job_id)
        counts = progress.counts
        return self._meter.pulse(
            time.monotonic(),
            finished=counts.done + counts.failed,
            failed=counts.failed,
            total=counts.total,
            tokens=progress.prompt_tokens + progress.completion_tokens,
        )

    def _keep_pace(self, store: Store, pulse: Pulse) -> None:
        """The rates into the store, where other processes read them (``dray status``)."""
        now = time.monotonic()
        if pulse.rows_per_second is not None and now - self._paced > PACE_EVERY:
            store.merge_job_info(self._job.lease, pace_of(pulse, at=store.now()))
            self._paced = now


class ErrorShare:
    """Which share of error rows was reached last."""

    def __init__(self) -> None:
        self._reached = 0.0

    def reached(self, *, finished: int, failed: int) -> float | None:
        """The highest of ``ERROR_SHARES`` that is reached for the first time; None for no new one."""
        if finished < ERROR_ROWS:
            return None
        new = [one for one in ERROR_SHARES if self._reached < one <= failed / finished]
        if not new:
            return None
        self._reached = new[-1]
        return self._reached
