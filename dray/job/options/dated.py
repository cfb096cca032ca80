"""The day of a run in what a user asks for, so that one schedule gives each run its own input and folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_DAY = "%Y-%m-%d"
_WORDS = {
    "{date}": (_DAY, timedelta()),
    "{yesterday}": (_DAY, timedelta(days=1)),
    "{time}": ("%Y-%m-%dT%H-%M", timedelta()),
}


def dated(text: str, at: datetime) -> str:
    """``text`` with ``{date}`` and ``{time}`` of a run that was to start ``at``, and ``{yesterday}``, in UTC.

    ``at`` has a time zone. Other braces stay as they are.
    """
    for word, (form, earlier) in _WORDS.items():
        if word in text:
            text = text.replace(word, (at - earlier).astimezone(UTC).strftime(form))
    return text
