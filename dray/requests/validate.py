"""The envelope of a row in the OpenAI batch format, and the defaults that the job fills in.

Only what can be told without the model is checked here. What a body says to the engine (unknown fields,
sampling values, ``stream``) is the engine's to judge, and ends in an error row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import orjson

from dray.codes import ErrorCode
from dray.kinds import KINDS, LENGTH_FIELDS, Kind, all_kinds, text_fields
from dray.requests.precision import holds_rounded, writes_long

CUSTOM_ID_LIMIT = 512
"""Longest custom_id in characters: at 4 bytes each it still fits an index row of PostgreSQL (2,704 bytes)."""

POST = ("POST", "post")
"""The method of a row, where it says one."""


NOT_UTF8 = "is not UTF-8; convert it, for example with iconv -f WINDOWS-1252 -t UTF-8"
"""What is said of a text or file in another encoding. That one is the commonest."""

_SHORTER = "ask for less in one row, and name images, sounds and videos by files (--image-root, ...)"


class BadRow(ValueError):  # noqa: N818  a verdict on one row, on its way to a Problem
    """A row that cannot become a request; ``custom_id`` is its own where that much could be read."""

    def __init__(
        self, code: ErrorCode, message: str, field: str | None = None, custom_id: str | None = None
    ) -> None:
        super().__init__(code, message)
        self.code: ErrorCode = code
        self.message = message
        self.field = field
        self.custom_id = custom_id


class BadText(BadRow):
    """A row, an object, with texts that can be neither stored nor sent.

    ``unfit`` says of each field with such a text what it holds; ``row`` has the other fields.
    """

    def __init__(self, row: dict[str, Any], unfit: dict[str, str]) -> None:
        field = next((name for name in unfit if _unfit(name) is None), None)
        told = next(iter(unfit.values())) if field is None else unfit[field]
        super().__init__("invalid_text", f"a text holds {told}; remove it", field)
        self.row = row
        self.unfit = unfit


class Envelope(NamedTuple):
    """What a valid line says. Its ``url`` is the kind's own, whichever one the line has."""

    custom_id: str
    url: str
    body: dict[str, Any]


Fill = Callable[[str, dict[str, Any]], None]


def filler(sampling: Mapping[str, Any]) -> Fill:
    """A function ``(url, body)`` that sets the job's sampling fields where the body has none.

    A null is as if the field were not there: OpenAI's API and vLLM take it so, and pandas writes one wherever
    a row has no value. A default length yields to any spelling of it. Engines that do not generate take no
    sampling, but some fields of their own.
    """
    fields = tuple(sampling.items())
    sets_length = any(name in sampling for name in LENGTH_FIELDS)

    def fill(url: str, body: dict[str, Any]) -> None:
        kind = KINDS[url]
        engine = kind.engine
        if not engine.generates:
            for name in engine.fields & sampling.keys():
                if body.get(name) is None:
                    body[name] = sampling[name]
            return
        own_length = sets_length and any(body.get(name) is not None for name in LENGTH_FIELDS)
        for name, value in fields:
            own = kind.spelled.get(name, name)
            if body.get(own) is None and not (own_length and name in LENGTH_FIELDS):
                body[own] = value

    return fill


def read_envelope(line: bytes, kind: Kind = Kind.CHAT) -> Envelope:
    """The request on one line of the batch format; BadRow says what is wrong with it.

    A row without a URL is of ``kind``, where its body holds a prompt of that kind.
    """
    try:
        row = parse_object(line)
    except BadText as bad:
        own = bad.row.get("custom_id")
        bad.custom_id = own if type(own) is str and 0 < len(own) <= CUSTOM_ID_LIMIT else None
        raise
    custom_id = row.get("custom_id")
    if type(custom_id) is not str or not custom_id or len(custom_id) > CUSTOM_ID_LIMIT:
        raise _bad_custom_id(custom_id)
    url = row.get("url")
    body = row.get("body")
    if url is None and type(body) is dict and not body.keys().isdisjoint(kind.texts):
        url = row["url"] = kind.url
    if type(body) is not dict or type(url) is not str or url not in KINDS or not _posts(row):
        raise _bad_envelope(row, custom_id, kind)
    _refuse_rounded(line, custom_id, KINDS[url], body)
    return Envelope(custom_id, KINDS[url].url, body)


def parse_object(line: bytes) -> dict[str, Any]:
    """One JSON object, or BadRow; BadText where NUL or lone surrogates in its texts are all that is wrong."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _diagnosed(line, error) from None
    if type(row) is not dict:
        raise BadRow("not_an_object", f"the line is a {_json_type(row)}, not an object")
    if b"\\u0000" in line and (unfit := _unfit_fields(row)):
        raise BadText(_without(row, unfit), unfit)
    return row


def check_custom_id(value: object, column: str) -> str:
    """``value`` of the user's ``column`` as a custom_id, or BadRow."""
    if type(value) is not str or not value or len(value) > CUSTOM_ID_LIMIT:
        raise _bad_custom_id(value, column)
    return value


def check_text(text: str, field: str) -> str:
    """``text`` where it can be stored and sent as UTF-8, or BadRow."""
    if "\0" in text:
        raise BadRow("invalid_text", "the text holds the character NUL; remove it", field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        told = f"the text {NOT_UTF8}" if _is_byte(error) else "the text holds a lone surrogate"
        raise BadRow("invalid_text", told, field) from None
    return text


def is_utf8(text: str) -> bool:
    """Whether all bytes of a text that was read with ``surrogateescape`` were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return not _is_byte(error)
    return True


def _is_byte(error: UnicodeEncodeError) -> bool:
    """Whether what cannot be written stands for a byte that could not be read."""
    return "\udc80" <= error.object[error.start] <= "\udcff"


def too_long(limit: int) -> BadRow:
    """The verdict on a line over ``limit`` bytes."""
    return BadRow("line_too_long", f"the line is longer than {limit:,} bytes; {_SHORTER}")


def _posts(row: dict[str, Any]) -> bool:
    return row.get("method") in (*POST, None)


def _refuse_rounded(line: bytes, custom_id: str, kind: Kind, body: dict[str, Any]) -> None:
    """Whole numbers beyond 64 bits came out of the parser as floats: in a schema they mean another number."""
    for name, value in body.items():
        if name not in kind.texts and holds_rounded(value) and writes_long(line, "body", name):
            told = f"`{name}` holds a whole number of more than 64 bits, which would be rounded"
            raise BadRow("number_too_large", f"{told}; write it as text", "body", custom_id)


def _bad_custom_id(value: object, column: str | None = None) -> BadRow:
    """``column`` is what the user calls it, where the row is none of the batch format."""
    field = column or "custom_id"
    if value is None or value == "":
        told = "the row has no custom_id" if column is None else f"the column {column!r} is empty in this row"
        return BadRow("missing_custom_id", f"{told}; give each row an id of its own", field)
    told = "custom_id" if column is None else f"the id in the column {column!r}"
    if not isinstance(value, str):
        whole = "" if column is None else " or a whole number"
        return BadRow("invalid_custom_id", f"{told} is a {_json_type(value)}; make it a string{whole}", field)
    return BadRow(
        "invalid_custom_id", f"{told} has {len(value)} characters; at most {CUSTOM_ID_LIMIT} fit", field
    )


def _bad_envelope(row: dict[str, Any], custom_id: str, kind: Kind) -> BadRow:
    url, body, known = row.get("url"), row.get("body"), ", ".join(kind.url for kind in all_kinds())
    if body is None and (misplaced := next((name for name in text_fields() if name in row), None)):
        hint = f"{misplaced} stands beside custom_id; put it into body, or use --prompt-column"
        return BadRow("unknown_field", hint, misplaced, custom_id)
    if url is None:
        told = (
            f"the row has no url, and its body is no request of the kind {kind} (--kind); dray offers {known}"
        )
        return BadRow("unknown_url", told, "url", custom_id)
    if not isinstance(url, str) or url not in KINDS:
        return BadRow("unknown_url", f"dray does not offer this url; it offers {known}", "url", custom_id)
    if not _posts(row):
        return BadRow("invalid_method", "the method must be POST", "method", custom_id)
    if body is None:
        return BadRow("missing_body", "the row has no body", "body", custom_id)
    return BadRow("missing_body", f"body is a {_json_type(body)}, not an object", "body", custom_id)


def _diagnosed(line: bytes, error: orjson.JSONDecodeError) -> BadRow:
    """Why a line cannot be read: its text, or its JSON."""
    if b"\0" in line:
        return BadRow("invalid_text", f"a NUL byte at column {line.index(0) + 1}; remove it")
    try:
        text = line.decode()
    except UnicodeDecodeError as bad:
        return BadRow("invalid_text", f"the line {NOT_UTF8} (byte {bad.start + 1})")
    constants: list[str] = []
    try:
        row = json.loads(text, parse_constant=constants.append)
        if not constants and type(row) is dict and (unfit := _unfit_fields(row)):
            rest = json.dumps(_without(row, unfit))
            return BadText(orjson.loads(rest), unfit)  # numbers as orjson reads those of other rows
    except (ValueError, RecursionError):
        constants = []
    if constants:  # Python's json writes them, and so does pandas in part
        return BadRow("invalid_json", f"not JSON: {constants[0]} stands for a number; write null")
    if not text.strip().startswith("{"):
        return BadRow("invalid_json", f"not JSON (column {error.colno}); each line must be one JSON object")
    return BadRow("invalid_json", f"not JSON: {error.msg.split(': line ')[0]}, at column {error.colno}")


def _unfit(value: Any) -> str | None:
    """What a text in ``value`` must not hold. A loop: bodies may nest deeper than Python recurses."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if "\0" in part:
                return "the character NUL (\\u0000)"
            try:
                part.encode()
            except UnicodeEncodeError:
                return "a lone surrogate (half of a \\ud800-style pair)"
        elif isinstance(part, dict):
            waiting.extend(part)
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return None


def _unfit_fields(row: dict[str, Any]) -> dict[str, str]:
    found = {name: _unfit({name: value}) for name, value in row.items()}
    return {name: told for name, told in found.items() if told is not None}


def _without(row: dict[str, Any], fields: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in fields}


def _json_type(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    known = "null" if value is None else names.get(type(value))
    return type(value).__name__ if known is None else f"JSON {known}"
