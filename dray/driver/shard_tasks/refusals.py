"""Shard tasks for which the store had no connection left: how many run with one, and when more are tried."""

from __future__ import annotations

from collections.abc import Callable

from dray.errors import JobPausedError
from dray.failures.rules import STORE_PATIENCE

FIRST_PAUSE = 60.0
"""Seconds until more shard tasks are tried than had a connection: twice as long after each try in vain."""
LONGEST_PAUSE = 600.0

SETTLED_SECONDS = 120.0
"""A task that has run for so long has a connection: one that finds none ends after some 20 seconds."""


class Refusals:
    """Keeps the number of shard tasks to what the store has connections for.

    A task that finds none ends, and tells by that. The limits that the driver read may not be all: other jobs
    and programs take connections too, and a pooler has a limit of its own. ``clock``: seconds, of the time
    that the driver watched.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started: dict[int, float] = {}  # when the tasks that run were started, by their shards
        self._most: int | None = None  # None: as many as there may be
        self._pause = FIRST_PAUSE
        self._again_at = 0.0
        self._refused = False  # since more were tried the last time
        self._none_since: float | None = None  # when tasks were first refused, and none had a connection
        self.told: str | None = None
        """What the last task that was refused said; None where all have a connection, as far as is known."""

    def started(self, number: int) -> None:
        """The shard's task was started."""
        self._started[number] = self._clock()

    def ended(self, number: int) -> None:
        """The shard's task ended, or was given up."""
        self._started.pop(number, None)

    def connected(self) -> None:
        """A task had a connection; or the store is away from the driver, too, and nothing is known."""
        self._none_since = None

    def refused(self, number: int, why: str) -> bool:
        """The shard's task ended without a connection. True for the first after a time in which all had one.

        Raises:
            JobPausedError: for ``STORE_PATIENCE`` seconds no task has had one.
        """
        self.ended(number)
        now, first = self._clock(), self._most is None
        self._most = max(len(self._started), 1)
        self._refused, self._again_at, self.told = True, now + self._pause, why
        if any(now - at > SETTLED_SECONDS for at in self._started.values()):
            self._none_since = None
        elif self._none_since is None:
            self._none_since = now
        elif now - self._none_since > STORE_PATIENCE:
            lasted = f"for {STORE_PATIENCE / 60:.0f} minutes no shard task has had a connection to its store"
            raise JobPausedError(f"{lasted} ({why}); then `dray resume JOB` goes on")
        return first

    def most(self, bound: int) -> int:
        """How many tasks may run now, of the ``bound`` that there may be at all."""
        if self._most is None:
            return bound
        now = self._clock()
        if now >= self._again_at:
            if not self._refused and self._most >= bound:
                self._most = self.told = None
                self._pause = FIRST_PAUSE
                return bound
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if self._refused else FIRST_PAUSE
            self._most, self._refused, self._again_at = 2 * self._most, False, now + self._pause
        return min(self._most, bound)
