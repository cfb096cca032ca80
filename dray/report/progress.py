"""Progress of a running job: how far it is, how fast it went in the last minute, and that in one line."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dray import wording

WINDOW_SECONDS = 60.0
"""What rates are taken over: on a job of days, a mean since its start would say nothing of today."""


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """A job at one moment: ``finished`` rows (answered or error rows), of which ``failed``, of ``total``.

    ``tokens`` are prompt and completion tokens so far. The rates are those of the last minute, None where
    there was only one look.
    """

    finished: int
    failed: int
    total: int
    tokens: int = 0
    rows_per_second: float | None = None
    tokens_per_second: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """What the rate makes of the rows that are left; None where the rate is 0 or not known."""
        return seconds_left(self.total - self.finished, self.rows_per_second)

    @property
    def line(self) -> str:
        """It in one line."""
        return progress_line(
            finished=self.finished,
            total=self.total,
            failed=self.failed,
            rows_per_second=self.rows_per_second,
            tokens_per_second=self.tokens_per_second,
        )


class Meter:
    """Rates over the last minute, from looks at a job's counters."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._looks: deque[tuple[float, int, int]] = deque()

    def pulse(self, at: float, *, finished: int, failed: int, total: int, tokens: int) -> Pulse:
        """Take in one look; ``at`` is in seconds by any clock that only moves on."""
        looks = self._looks
        looks.append((at, finished, tokens))
        while len(looks) > 2 and looks[1][0] <= at - self._window:
            looks.popleft()
        since, rows_then, tokens_then = looks[0]
        seconds = at - since
        return Pulse(
            finished=finished,
            failed=failed,
            total=total,
            tokens=tokens,
            rows_per_second=(finished - rows_then) / seconds if seconds > 0 else None,
            tokens_per_second=(tokens - tokens_then) / seconds if seconds > 0 else None,
        )


def seconds_left(rows: int, rows_per_second: float | None) -> float | None:
    """How long ``rows`` take at that rate; None where none are left, or the rate says nothing."""
    return rows / rows_per_second if rows > 0 and rows_per_second else None


def progress_line(
    *,
    finished: int,
    total: int,
    failed: int = 0,
    rows_per_second: float | None = None,
    tokens_per_second: float | None = None,
) -> str:
    """Say how far a job is: rows, rates, time left, errors.

    ``finished`` counts answered and error rows, ``failed`` the latter. A rate of 0 is said: it means that no
    row was finished in the last minute.
    """
    parts = [
        f"{wording.count(finished)} of {wording.plural(total, 'row')} ({wording.share(finished, total)})"
    ]
    if rows_per_second is not None:
        parts.append(f"{wording.rate(rows_per_second)} rows/s")
    if tokens_per_second:
        parts.append(f"{wording.compact(tokens_per_second)} tokens/s")
    left = seconds_left(total - finished, rows_per_second)
    if left is not None:
        parts.append(f"{wording.duration(max(round(left), 1))} left")
    if failed:
        parts.append(wording.plural(failed, "error"))
    return " · ".join(parts)
