"""One seam for vLLM's errors: what a foreign exception or error response means for a row."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from dray.errors import RequestRefused

_TOO_LONG = re.compile(
    r"maximum (context|model|input)? ?length|max_model_len|context length|longer than", re.IGNORECASE
)
_CODES = {
    "model": "model_mismatch",
    "response_format": "invalid_json_schema",
    "structured_outputs": "invalid_json_schema",
}
MAX_MESSAGE = 500  # characters; enough for every message of vLLM's own, too little for a prompt
_SHORTEST_QUOTE = 12  # characters of the body that count as a quotation


def refusal_of(error: BaseException, body: dict[str, Any]) -> RequestRefused:
    """The refusal that an exception from reading or submitting ``body`` stands for."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, ValidationError):
        return _of_validation(error, body)
    parameter = getattr(error, "parameter", None)
    # VLLMValidationError's str() quotes the rejected value; its first argument does not.
    message = str(error.args[0]) if error.args else type(error).__name__
    return _refusal(message, parameter, body)


def refusal_of_response(response: Any, body: dict[str, Any]) -> RequestRefused:
    """The refusal that one of vLLM's ``ErrorResponse`` objects stands for."""
    return _refusal(response.error.message, response.error.param, body)


def _of_validation(error: ValidationError, body: dict[str, Any]) -> RequestRefused:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"][:4])
    message = first["msg"].removeprefix("Value error, ")
    return _refusal(
        f"{field}: {message}" if field else message, str(first["loc"][0]) if first["loc"] else None, body
    )


def _refusal(message: str, parameter: str | None, body: dict[str, Any]) -> RequestRefused:
    message = without_quotes(message, body)[:MAX_MESSAGE]
    if _TOO_LONG.search(message) and parameter not in _CODES:
        return RequestRefused("context_length_exceeded", message, param=parameter)
    code = _CODES.get((parameter or "").split(".")[0])
    if code is None:
        code = (
            "invalid_json_schema"
            if re.search(r"schema|grammar", message, re.IGNORECASE)
            else "invalid_request"
        )
    return RequestRefused(code, message, param=parameter)


def without_quotes(message: str, body: dict[str, Any]) -> str:
    """``message`` with every longer text of ``body`` that it quotes cut out: errors carry no prompts."""
    for text in _texts(body):
        if len(text) >= _SHORTEST_QUOTE and text in message:
            message = message.replace(text, "...")
    return message


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return []
