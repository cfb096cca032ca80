"""Bear a store that is away: said once a minute, and for as long as the table of causes says."""

from __future__ import annotations

import logging
import math
import time

from dray.errors import FencedError, JobPausedError, StoreError, StoreFatalError
from dray.spot.causes import STORE_PATIENCE

SHORT_PATIENCE = 2.0
"""Seconds for one try of who has more to look after than the store."""

_SAY_EVERY = 60.0  # seconds

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class StorePatience:
    """For one who asks the store again and again."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._away_since: float | None = None
        self._said = -math.inf

    def back(self) -> None:
        """It has answered."""
        if self._away_since is not None:
            self._logger.info("the store answers again, after %.0f s", time.monotonic() - self._away_since)
        self._away_since = None

    def bear(self, error: StoreError) -> None:
        """It has not.

        Raises:
            FencedError: it has, and the job is another driver's.
            JobPausedError: it will not until somebody acts, or has not for too long.
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
            raise JobPausedError("the store stays away; when it is back, `dray resume` goes on")
