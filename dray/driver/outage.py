"""Bear a store or a spool that is away: said now and then, and for as long as the table of causes says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dray.driver.events import Event, StoreAway, StoreBack, Warned
from dray.errors import FencedError, JobPausedError, StoreError, StoreFatalError
from dray.failures.rules import STORE_PATIENCE
from dray.shard.commit_outage import ADVICE
from dray.store import AttemptCause, Store

SHORT_PATIENCE = 2.0
"""Seconds for one try by a thread that has more to look after than the store."""

_SAY_EVERY = 60.0  # seconds


class StoreOutage:
    """The store's outages, for a thread that asks it again and again."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._away_since: float | None = None
        self._said = -math.inf

    @property
    def away(self) -> bool:
        """Whether it did not answer, or took no write, at the last try."""
        return self._away_since is not None

    @contextmanager
    def borne(self) -> Iterator[None]:
        """Calls of the store; where it is away they end, and whatever follows the block goes on.

        Raises:
            FencedError: the job is another driver's.
            JobPausedError: the store will not answer until an operator acts, or has not for too long.
        """
        try:
            yield
        except StoreError as error:
            self._bear(error)
        else:
            self._back()

    def _back(self) -> None:
        if self._away_since is not None:
            self._emit(StoreBack(seconds=time.monotonic() - self._away_since))
        self._away_since = None

    def _bear(self, error: StoreError) -> None:
        if isinstance(error, FencedError):
            raise error
        if isinstance(error, StoreFatalError):
            raise JobPausedError(f"{error}; when that is mended, `dray resume JOB` goes on") from error
        now = time.monotonic()
        if self._away_since is None:
            self._away_since, self._said = now, -math.inf
        if now - self._said > _SAY_EVERY:
            self._emit(StoreAway(error=str(error)))
            self._said = now
        if now - self._away_since > STORE_PATIENCE:
            away = f"the store has been away for {STORE_PATIENCE / 60:.0f} minutes ({error}); {ADVICE}"
            raise JobPausedError(f"{away}; when that is mended, `dray resume JOB` goes on") from error


class SpoolWatch:
    """Says that shards cannot read their requests: each tries again by itself, on a node of its own."""

    def __init__(self, job_id: str, emit: Callable[[Event], None]) -> None:
        self._job_id = job_id
        self._emit = emit
        self._known: int | None = None  # attempts that ended so; those of an earlier run are no news

    def look(self, store: Store) -> None:
        """Look, and tell what is new."""
        found = store.causes(self._job_id).get(AttemptCause.SPOOL_AWAY, 0)
        if self._known is not None and found > self._known:
            tried = f"{found - self._known} attempts at shards ({AttemptCause.SPOOL_AWAY})"
            paused = f"after {STORE_PATIENCE / 60:.0f} minutes the job is paused"
            line = f"the requests could not be read by {tried}; they try again, and {paused}"
            self._emit(Warned(line=line))
        self._known = found
