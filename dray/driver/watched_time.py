"""Time as far as the driver watched: a clock that stands still while the driver does."""

from __future__ import annotations

import time

LOOKS = 12
"""Looks in which nothing was seen, at least, before what is waited for counts as overdue."""


class WatchedTime:
    """Seconds on a clock that moves by at most ``most`` from one look of the driver to its next.

    A driver may stand still: it is stopped, or its machine is, or its store or a step of its own takes long.
    It then collects no answers, so it must not count that time as a silence of others.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._looked = self._now = time.monotonic()

    def look(self) -> None:
        """The driver looks."""
        looked = time.monotonic()
        self._now += min(looked - self._looked, self._most)
        self._looked = looked

    def __call__(self) -> float:
        """The seconds at the last look, to be compared with those at another one."""
        return self._now
