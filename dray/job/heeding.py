"""Let the driver notice, during a long step, that its job is to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from dray.errors import CancelledError, ExpiredError, JobPausedError, StoreError
from dray.job.deadline import stop_signals
from dray.job.open_job import OpenJob, reopen
from dray.job.watched import run_watched
from dray.store import StopSignals, Store

T = TypeVar("T")

HEAR_EVERY = 1.0
"""Seconds between looks whether the job is to stop."""

STOP_SECONDS = 10.0
"""For work that was told to stop: what still hangs then is left behind, and ends with the process."""

_PATIENCE = 2.0  # seconds for one look: a store that is away is asked again at the next one


class Heed:
    """Looks whether a job is to stop, as long as the block runs.

    Without ``expires`` the job does not stop because its time is over.
    """

    def __init__(self, job: OpenJob, *, expires: bool = True) -> None:
        self._job = job
        self._expires = expires
        self._store: Store | None = None
        self._looked = -HEAR_EVERY

    def __enter__(self) -> Heed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def look(self) -> None:
        """Look, at most once a second.

        Raises:
            CancelledError: the job was cancelled.
            ExpiredError: its time is over.
            JobPausedError: it was put to rest meanwhile, as by a suspension of its run.
        """
        if time.monotonic() - self._looked < HEAR_EVERY:
            return
        try:
            self._store = self._store or reopen(self._job, patience=_PATIENCE)
            signals = stop_signals(self._store, self._job)
            obey(self._job, signals if self._expires else replace(signals, expired=False))
            if signals.at_rest:
                self._refuse_put_to_rest(self._store)
        except StoreError:  # the driver's next write reports it
            self._close()
        self._looked = time.monotonic()

    def _refuse_put_to_rest(self, store: Store) -> None:
        """A job whose rows are all answered may be at rest: this run only writes its files again."""
        known = store.get_job(self._job.job_id)
        if not known.state.answered:
            raise JobPausedError(known.reason or "put to rest")

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def obey(job: OpenJob, signals: StopSignals) -> None:
    """Raise the error for an order to stop: CancelledError or ExpiredError."""
    if signals.cancelled:
        raise CancelledError(f"job {job.job_id} was cancelled; `{job.command('resume')}` goes on with it")
    if signals.expired:
        raise ExpiredError(f"the time of job {job.job_id} is over")


def run_until_stopped(
    job: OpenJob,
    work: Callable[[], T],
    *,
    stop: Callable[[], None],
    look: Callable[[], None],
    expires: bool,
) -> T:
    """Run ``work`` in a thread, and give up on it when the job is to stop, or when ``look`` raises.

    ``stop`` asks it to end. It may hang in a read that hears nothing; this waits ``STOP_SECONDS`` for it.
    Without ``expires`` it goes on although the job's time is over.

    Raises:
        CancelledError, ExpiredError: the job is to stop.
    """
    with Heed(job, expires=expires) as heed:
        heed.look()

        def both() -> None:
            heed.look()
            look()

        return run_watched(work, stop=stop, look=both, every=HEAR_EVERY / 5, patience=STOP_SECONDS)
