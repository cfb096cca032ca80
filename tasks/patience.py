"""Bear a store or a spool that is away: said now and then, and for as long as the table of causes says."""

from __future__ import annotations

import logging
import math
import time

from dray.errors import FencedError, JobPausedError, StoreError, StoreFatalError
from dray.failures.causes import STORE_PATIENCE
from dray.shard.ending import SPOOL_AWAY
from dray.shard.untaken import ADVICE
from dray.store import Store

SHORT_PATIENCE = 2.0
"""Seconds for one try by a thread that has more to look after than the store."""

SPOOL_LOOK_EVERY = 30.0
"""Seconds between looks whether shards can read their requests."""

_SAY_EVERY = 60.0  # seconds

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class StoreOutage:
    """The store's outages, for a thread that asks it again and again."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._away_since: float | None = None
        self._said = -math.inf

    @property
    def away(self) -> bool:
        """Whether it did not answer, or took no write, at the last try."""
        return self._away_since is not None

    def back(self) -> None:
        """It has answered."""
        if self._away_since is not None:
            self._logger.info("the store answers again, after %.0f s", time.monotonic() - self._away_since)
        self._away_since = None

    def bear(self, error: StoreError) -> None:
        """It has not.

        Raises:
            FencedError: it has, and the job is another driver's.
            JobPausedError: it will not until an operator acts, or has not for too long.
        """
        if isinstance(error, FencedError):
            raise error
        if isinstance(error, StoreFatalError):
            raise JobPausedError(f"{error}; when that is mended, `dray resume` goes on")
        now = time.monotonic()
        if self._away_since is None:
            self._away_since, self._said = now, -math.inf
        if now - self._said > _SAY_EVERY:
            self._logger.warning("the store does not answer: %s", type(error).__name__)
            self._said = now
        if now - self._away_since > STORE_PATIENCE:
            away = f"the store has been away for {STORE_PATIENCE / 60:.0f} minutes ({error})"
            raise JobPausedError(f"{away}; {ADVICE}; when that is mended, `dray resume` goes on")


class SpoolWatch:
    """Says that shards cannot read their requests: each tries again by itself, on a node of its own."""

    def __init__(self, job_id: str, logger: Logger) -> None:
        self._job_id = job_id
        self._logger = logger
        self._known: int | None = None  # attempts that ended so; those of an earlier run are no news
        self._looked = -math.inf

    def look(self, store: Store) -> None:
        """Look, now and then, and tell what is new."""
        now = time.monotonic()
        if now - self._looked < SPOOL_LOOK_EVERY:
            return
        self._looked = now
        found = store.causes(self._job_id).get(SPOOL_AWAY, 0)
        if self._known is not None and found > self._known:
            self._logger.warning(
                "the requests could not be read by %d attempts at shards (%s); they try again, and after "
                "%.0f minutes the job is paused",
                found - self._known,
                SPOOL_AWAY,
                STORE_PATIENCE / 60,
            )
        self._known = found
