"""A column of chat messages into the ``messages`` of a request.

What hubs and trainers write is taken: lists of ``role`` and ``content`` (also as JSON in a text), ShareGPT's
``from`` and ``value``, and the nulls that a Parquet struct puts where a message lacks a field. Whether the
model can follow such a conversation is the engine's to judge.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from dray.requests.columns.template import empty_cell, plain_decimal
from dray.requests.precision import INTEGERS
from dray.requests.validate import BadRow, check_text

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
}
"""What ShareGPT calls the speakers, and what the chat format calls them."""

_LEVELS = 200  # orjson writes 254, and the request is around these
_WANTED = "messages are a list of objects with role and content"


def messages_of(value: object, column: str, system_prompt: str | None = None) -> list[dict[str, Any]]:
    """The messages in ``value``, what ``column`` holds in one row.

    ``system_prompt`` comes first where the row does not begin with a system message of its own. BadRow says
    what is wrong, and at which message; never what the row holds.
    """
    if value is None:
        raise empty_cell(column)
    if isinstance(value, str):
        value = parsed(value, column, "messages with json.dumps, or read plain texts with --prompt-column")
    if not isinstance(value, list):
        raise BadRow("invalid_messages", f"the column {column!r} holds no list; {_WANTED}", column)
    if not value:
        raise BadRow("invalid_messages", f"the column {column!r} holds no message in this row", column)
    messages = [_message(part, f"{column}[{number}]") for number, part in enumerate(value)]
    if system_prompt is None or messages[0]["role"] in ("system", "developer"):
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


def parsed(text: str, column: str, advice: str) -> Any:
    """The JSON in ``text``, or BadRow, which says to write ``advice``."""
    check_text(text, column)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRow(
            "invalid_json",
            f"the text in column {column!r} is not JSON (at character {error.colno}); write {advice}",
            column,
        ) from None


def _message(part: object, place: str) -> dict[str, Any]:
    found = plain(part, place, texts=True)  # no template reads the dates that data sets have there
    if not isinstance(found, dict):
        raise BadRow("invalid_messages", f"the message is no object; {_WANTED}", place)
    sharegpt = "role" not in found and "from" in found
    message: dict[str, Any] = _of_sharegpt(found, place) if sharegpt else found
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise BadRow("invalid_messages", f"the message has no role; {_WANTED}", f"{place}.role")
    if content is None and not message.get("tool_calls"):
        raise BadRow("invalid_messages", f"the message has no content; {_WANTED}", f"{place}.content")
    if content is not None and not isinstance(content, str | list):
        raise BadRow("invalid_messages", "content is a text or a list of text parts", f"{place}.content")
    return message


def _of_sharegpt(message: dict[str, Any], place: str) -> dict[str, Any]:
    speaker = message["from"]
    role = _ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise BadRow(
            "invalid_messages",
            f"the speaker (from) is not one of {', '.join(_ROLES)}; convert the column to role and content",
            f"{place}.from",
        )
    return {"role": role, "content": message.get("value")}


def plain(
    value: object, place: str, path: tuple[str | int, ...] = (), *, nulls: bool = False, texts: bool = False
) -> Any:
    """``value`` as JSON can hold it, without the nulls in its objects unless ``nulls``.

    With ``texts``, dates, decimals and the like become text. BadRow where ``value`` holds something else.
    """
    if len(path) > _LEVELS:
        raise BadRow("invalid_value", f"the value is nested too deeply: over {_LEVELS} levels", place)
    if isinstance(value, str):
        return check_text(value, place)
    if value is None or isinstance(value, float) or (isinstance(value, int) and value in INTEGERS):
        return value
    if isinstance(value, list | tuple):
        return [
            plain(part, place, (*path, number), nulls=nulls, texts=texts) for number, part in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            check_text(str(name), place): plain(part, place, (*path, str(name)), nulls=nulls, texts=texts)
            for name, part in value.items()
            if nulls or part is not None
        }
    text = _text(value) if texts else None
    if text is None:
        raise _not_json(value, place, path)
    return text


def _text(value: object) -> str | None:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return plain_decimal(value)
    return str(value) if isinstance(value, UUID | timedelta) else None


def _not_json(value: object, place: str, path: tuple[str | int, ...]) -> BadRow:
    """The names in ``path`` are of a table's columns: JSON holds no such value."""
    what = "number of more than 64 bits" if isinstance(value, int) else type(value).__name__
    inside = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    told = f"the value is a {what}, which JSON cannot hold; leave it out, or write it as text"
    return BadRow("invalid_value", told, place + inside)
