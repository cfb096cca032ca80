"""Outcomes as lines of JSON, in the batch output format of OpenAI.

Clients of OpenAI read ``row["response"]["status_code"]`` of every row, so error rows carry a response too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from dray.codes import FAILED, STATUS


class Finished(Protocol):
    """What the files take of a finished row: Outcome has it, and the store's outcome."""

    @property
    def index(self) -> int: ...  # noqa: D102
    @property
    def custom_id(self) -> str | None: ...  # noqa: D102
    @property
    def response(self) -> bytes | None: ...  # noqa: D102
    @property
    def error_code(self) -> str | None: ...  # noqa: D102
    @property
    def error_message(self) -> str | None: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def completion_tokens(self) -> int: ...  # noqa: D102


Page = Sequence[Finished]
"""Outcomes in the order of their index."""

# Line ends to Unicode, and so to `str.splitlines` and to the line reader of `openai`. JSON may hold them as
# they are; escaped, every reader agrees on what a line is. In UTF-8 no other character holds these bytes.
_LINE_ENDS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))

_TYPES = {400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 500: "server_error"}


def answer_line(index: int, custom_id: str | None, response: bytes) -> bytes:
    """One line of ``output.jsonl``."""
    if b"\n" in response:  # JSON may be pretty-printed; a line may not
        response = orjson.dumps(orjson.loads(response))
    return (
        b'{"id":"batch_req_%012d","custom_id":%b,"response":{"status_code":200,"request_id":"req_%012d","body":'
        b'%b},"error":null}\n' % (index, orjson.dumps(custom_id), index, response)
    )


def error_line(index: int, custom_id: str | None, code: str, message: str | None) -> bytes:
    """One line of ``errors.jsonl``."""
    status = STATUS.get(code, FAILED)  # of another version of dray
    error: dict[str, Any] = {"message": message, "type": _TYPES[status], "param": None, "code": code}
    return orjson.dumps(
        {
            "id": f"batch_req_{index:012d}",
            "custom_id": custom_id,
            "response": {
                "status_code": status,
                "request_id": f"req_{index:012d}",
                "body": {"error": error},
            },
            "error": {"code": code, "message": message},
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


def with_row(line: bytes, columns: Sequence[str], values: Sequence[Any]) -> bytes:
    """The line with the row's kept columns at its end."""
    row = orjson.dumps(dict(zip(columns, values, strict=True)))
    return b'%b,"row":%b}\n' % (line[:-2], row)


def page_of(lines: list[bytes]) -> bytes:
    """Lines as bytes of a file, in which nothing but a newline ends a line."""
    page = b"".join(lines)
    for end, escaped in _LINE_ENDS:
        if end in page:
            page = page.replace(end, escaped)
    return page
