"""The request and its outcome: what enters dray, and what leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dray.codes import ErrorCode

EXPIRED: Final = "expired"
"""The error code of rows that no replica answered before the job's time was over."""

FOLLOWED: Final = -2
"""In place of a shard: the outcome is that of another row of the job, which asks the same."""

REUSED: Final = -3
"""In place of a shard: the answer is one that an earlier job got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row of the input.

    ``index`` is its position in the input, from 0. ``custom_id`` is unique within the job.
    ``body`` is the OpenAI request body, untouched but for the job's defaults.
    """

    index: int
    custom_id: str
    url: str
    body: dict[str, Any]

    def refused(self, code: ErrorCode, message: str) -> Outcome:
        """The error row that answers this request."""
        return Outcome(index=self.index, custom_id=self.custom_id, error_code=code, error_message=message)


class Outcome(NamedTuple):
    """The one terminal answer to a request.

    A NamedTuple, not a dataclass: outcomes cross process borders by the thousand, and it
    pickles several times faster.

    Either ``response`` (the OpenAI response body, JSON in UTF-8) or ``error_code`` with
    ``error_message`` is set. Token counts are whole numbers; durations are seconds:
    ``queue_seconds`` from admission to the first schedule, ``first_token_seconds`` and
    ``total_seconds`` from admission. ``cached_tokens`` are the prompt tokens that came from
    the prefix cache.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which no reader of outcomes needs
    custom_id: str | None
    response: bytes | None = None
    error_code: ErrorCode | None = None
    error_message: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether this is an error row."""
        return self.error_code is not None
