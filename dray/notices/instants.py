"""Points in time as clouds write them, in seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_CLOCKS_AGREE = 2.0
"""Seconds by which two clocks may differ before the difference counts. An HTTP date has whole seconds."""


def instant(text: object) -> float | None:
    """The time that ``text`` says, None where it says none.

    ``2026-11-21T08:22:00Z`` (RFC 3339: AWS, Kubernetes, some of Azure's) or
    ``Sat, 21 Nov 2026 08:22:00 GMT`` (RFC 1123: Azure, HTTP). Without a zone it is UTC.
    """
    if not isinstance(text, str) or ":" not in text:
        return None
    parsed = _iso(text.strip()) or _rfc1123(text.strip())
    if parsed is None:
        return None
    seconds = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    return seconds if seconds > 0 else None


def on_this_clock(stated: float | None, *, said_at: float | None, now: float) -> float | None:
    """A time that another machine stated, on this one's clock.

    ``said_at`` is what the other clock showed when it said so. A node may begin with a clock that is hours
    off; a deadline is a number of seconds from now, whatever this clock shows.
    """
    return None if stated is None else stated - ahead(said_at, now)


def ahead(said_at: float | None, now: float) -> float:
    """Seconds by which a clock that showed ``said_at`` is ahead of this one; 0 where they agree."""
    return 0.0 if said_at is None or abs(said_at - now) <= _CLOCKS_AGREE else said_at - now


def _iso(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _rfc1123(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
