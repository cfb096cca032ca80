"""What a step loop has done since its engine started."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dray.engine.tuning import Tuned
from dray.requests.model import Outcome

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoopStats:
    """Counters of a loop's life; seconds are wall time of this process.

    ``row_seconds`` are ``busy_seconds`` times the rows in the engine, ``answered_seconds`` those of them that
    went to rows which finished. The rest went to rows in the engine, or to rows that were dropped.
    """

    steps: int = 0
    busy_seconds: float = 0.0
    row_seconds: float = 0.0
    answered_seconds: float = 0.0
    admitted: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_at: float | None = None  # seconds since 1970; of what finished so far
    tuned: Tuned | None = None

    def note_tuned(self, tuned: Tuned | None) -> None:
        """The limits that the engine has found, if it has."""
        if tuned is not None and self.tuned is None:
            self.tuned = tuned
            _logger.info("%s", tuned.line)

    def count(self, outcome: Outcome, now: float) -> None:
        """A row left the engine at ``now`` (seconds since 1970)."""
        self.finished += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.completion_tokens += outcome.completion_tokens
        if not outcome.failed:
            # Without tokens (embeddings) the answer itself stands for the first one.
            first = outcome.first_token_seconds or outcome.total_seconds
            came = now - max(outcome.total_seconds - first, 0.0)
            self.first_token_at = min(came, self.first_token_at or came)


class RowClock:
    """Adds up the seconds that rows are in the engine. Of the loop's thread alone."""

    def __init__(self, stats: LoopStats) -> None:
        self._stats = stats
        self._entered: dict[int, float] = {}  # busy seconds when a row entered, by its key

    def enter(self, key: int) -> None:
        """A row is in the engine."""
        self._entered[key] = self._stats.busy_seconds

    def step(self, seconds: float) -> None:
        """The engine made a step."""
        stats = self._stats
        stats.steps += 1
        stats.busy_seconds += seconds
        stats.row_seconds += seconds * len(self._entered)

    def leave(self, key: int, *, answered: bool) -> None:
        """A row is out of the engine."""
        entered = self._entered.pop(key, None)
        if answered and entered is not None:
            self._stats.answered_seconds += self._stats.busy_seconds - entered
