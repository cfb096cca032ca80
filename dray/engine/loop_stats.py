"""What a step loop has done since its engine started."""

from __future__ import annotations

from dataclasses import dataclass

from dray.requests.model import Outcome


@dataclass(slots=True)
class LoopStats:
    """Counters of a loop's life; seconds are wall time of this process."""

    steps: int = 0
    busy_seconds: float = 0.0
    admitted: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_at: float | None = None  # seconds since 1970; of what finished so far

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
