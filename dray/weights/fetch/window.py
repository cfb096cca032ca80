"""How many requests a fetch has at a source at once."""

from __future__ import annotations

from dray.weights.fetch.limits import FetchLimits


class Window:
    """A number of requests: more while that brings more, half when the store is busy or the line slow."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self.size = limits.first_window
        self._before = 0.0  # bytes/s at the size before
        self._began: float | None = None
        self._bytes = 0
        self._answers = 0
        self._rounds = 0
        self._growing = True
        self._smaller = limits.first_window  # the size before the last growth
        self._halved = float("-inf")

    def done(self, now: float, size: int) -> None:
        """A chunk came; at the end of a round (as many answers as the window is wide) the size is judged."""
        if self._began is None:
            self._began = now
            return
        self._bytes += size
        self._answers += 1
        if self._answers >= self.size and now - self._began >= self._limits.round_seconds:
            self._judge(self._bytes / (now - self._began))
            self._began, self._bytes, self._answers = now, 0, 0

    def busy(self, now: float) -> None:
        """The store asked for less; counts once per second at most: answers of one moment mean the same."""
        self._halve(now, self.size, least=2)

    def crowded(self, now: float, running: int) -> None:
        """The ``running`` requests share a line too slow for them: ask for less; one alone may do."""
        self._halve(now, min(self.size, running), least=1)

    def _halve(self, now: float, size: int, *, least: int) -> None:
        if now - self._halved >= 1.0:
            self.size, self._halved = max(least, size // 2), now
            self._growing, self._rounds, self._before = False, 0, 0.0

    def _judge(self, rate: float) -> None:
        self._rounds += 1
        if self._growing:
            if rate > 1.1 * self._before:
                self._grow(rate, 2 * self.size)
            else:  # the last growth brought nothing
                self.size, self._growing, self._rounds = self._smaller, False, 0
        elif self._rounds >= 8:  # look whether more pays by now
            self._growing = True
            self._grow(rate, self.size + max(1, self.size // 4))

    def _grow(self, rate: float, size: int) -> None:
        self._before, self._smaller = rate, self.size
        self.size = min(size, self._limits.largest_window)
