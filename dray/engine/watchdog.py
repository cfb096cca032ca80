"""Whether an engine stands still: a step that never returns, or steps that bring nothing."""

from __future__ import annotations

_LATE_SECONDS = 5.0  # later than this, a look was held up by what held the engine up as well


class Watchdog:
    """Looks at an engine each ``every`` seconds; it may stand still for ``seconds``.

    A process that was stopped (or its machine) does nothing meanwhile. It is no fault of the engine's, so the
    time by which a look came late does not count, but for some seconds.
    """

    def __init__(self, seconds: float, every: float) -> None:
        self._seconds = seconds
        self._most = every + _LATE_SECONDS
        self._looked: float | None = None
        self._excused = 0.0

    def stands_still(self, idle: float | None, now: float) -> bool:
        """Whether it does. ``idle`` is for how long it got no further; None where it has nothing to do."""
        late = 0.0 if self._looked is None else max(now - self._looked - self._most, 0.0)
        self._looked = now
        self._excused = min(self._excused + late, idle or 0.0)
        return idle is not None and idle - self._excused > self._seconds
