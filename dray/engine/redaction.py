"""Cutting a request's own words out of what an engine says of it: errors carry no prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dray.requests.media.medium import is_base64

_SHORTEST_QUOTE = 12  # characters of a whole text of the body that count as a quotation
_WINDOW = 16  # characters of a part of one; parts are looked for at every half window
_OF_A_FILE = 512  # characters of a file in base64: the rest are no words, and looking at 85 MB takes seconds


def without_quotes(message: str, body: dict[str, Any]) -> str:
    """``message`` with every longer text of ``body`` that it quotes cut out: errors carry no prompts.

    Finds whole texts of 12 characters and more, and any stretch of 24 characters of one, also in the
    escaped form of ``repr``.
    """
    windows = {message[start : start + _WINDOW] for start in range(len(message) - _WINDOW + 1)}
    for whole in texts_in(body):
        text = whole[:_OF_A_FILE] if is_base64(whole) else whole
        for form in dict.fromkeys((text, repr(text)[1:-1])):
            if len(form) >= _SHORTEST_QUOTE and form in message:
                message = message.replace(form, "...")
            for start in range(0, len(form) - _WINDOW + 1, _WINDOW // 2):
                if form[start : start + _WINDOW] in windows:
                    message = _without_stretch(message, form, start)
    return message


def _without_stretch(message: str, text: str, start: int) -> str:
    """``message`` without what it shares with ``text`` around the window at ``start``."""
    first = message.find(text[start : start + _WINDOW])
    if first < 0:
        return message
    last, end = first + _WINDOW, start + _WINDOW
    while first and start and message[first - 1] == text[start - 1]:
        first, start = first - 1, start - 1
    while last < len(message) and end < len(text) and message[last] == text[end]:
        last, end = last + 1, end + 1
    return f"{message[:first]}...{message[last:]}"


def texts_in(value: Any) -> Iterator[str]:
    """Every text in ``value``, longest nesting included: bodies may nest deeper than Python recurses."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
