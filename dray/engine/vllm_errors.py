"""One seam for vLLM's errors: what a foreign exception or error response means for a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from vllm.exceptions import GenerationError, VLLMClientError

from dray.errors import RequestRefused

_TOO_LONG = re.compile(
    r"maximum (context|model|input)? ?length|max_model_len|context length|longer than", re.IGNORECASE
)
_ABOUT_SCHEMA = re.compile(r"schema|grammar|structured.output", re.IGNORECASE)
_CODES = {
    "model": "model_mismatch",
    "response_format": "invalid_json_schema",
    "structured_outputs": "invalid_json_schema",
}
_ANSWER_FIELDS = ("max_completion_tokens", "max_tokens")
# xgrammar's messages carry the time of day, and error rows are the same bytes in every run.
_SOURCE_LINE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
_OTHER_BACKEND = ' The engine argument structured_outputs_config={"backend": "guidance"} takes more of them.'
MAX_MESSAGE = 500  # characters; enough for every message of vLLM's own, too little for a prompt
_SHORTEST_QUOTE = 12  # characters of a whole text of the body that count as a quotation
_WINDOW = 16  # characters of a part of one; parts are looked for at every half window


def refusal_of(error: BaseException, body: dict[str, Any]) -> RequestRefused:
    """The refusal that an exception from reading, submitting or running ``body`` stands for."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, ValidationError):
        return _of_validation(error, body)
    if isinstance(error, GenerationError):
        return _of_generation(body)
    if isinstance(error, VLLMClientError) or type(error) is ValueError or _is_template_error(error):
        # VLLMValidationError's str() quotes the rejected value; its first argument does not.
        message = str(error.args[0]) if error.args else type(error).__name__
        return _refusal(message, getattr(error, "parameter", None), body)
    # Whatever else a body provokes (TypeError, KeyError, RecursionError) says nothing to its author.
    return RequestRefused(
        "invalid_request",
        f"vLLM cannot read this body ({type(error).__name__}): a field is of the wrong type or shape",
    )


def refusal_of_response(response: Any, body: dict[str, Any]) -> RequestRefused:
    """The refusal that one of vLLM's ``ErrorResponse`` objects stands for."""
    return _refusal(response.error.message, response.error.param, body)


def _is_template_error(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "jinja2"


def _of_generation(body: dict[str, Any]) -> RequestRefused:
    """A request that vLLM gave up on after it was admitted: in 0.32, a grammar that does not compile."""
    if body.get("response_format") or body.get("structured_outputs") or body.get("tools"):
        return RequestRefused(
            "invalid_json_schema", "the schema or grammar could not be compiled for this model's tokenizer"
        )
    return RequestRefused("generation_failed", "vLLM ended this request with an internal error")


def _of_validation(error: ValidationError, body: dict[str, Any]) -> RequestRefused:
    """The problems of the alternative that fits best, where a field takes several types."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    alternatives: dict[tuple[Any, ...], list[Any]] = {}
    for problem in problems:
        alternatives.setdefault(_alternative(problem["loc"]), []).append(problem)
    best = min(alternatives.values(), key=_misfit)
    names = [str(part) for part in best[0]["loc"] if _is_name(part)]
    field = ".".join(name[:64] for name in names[:4])
    message = "; ".join(dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in best[:3]))
    return _refusal(f"{field}: {message}" if field else message, names[0] if names else None, body)


def _alternative(loc: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part of a location that tells the members of a union apart."""
    tags = [number for number, part in enumerate(loc) if not _is_name(part)]
    return loc[: tags[0] + 1] if tags else loc[:1]


def _misfit(problems: list[Any]) -> tuple[bool, int]:
    """How badly an alternative fits: one for another role or type is out of the question."""
    return any(problem["loc"][-1] in ("role", "type") for problem in problems), len(problems)


def _is_name(part: Any) -> bool:
    """Whether a part of a location is a field or a position, and not pydantic's name for a type."""
    text = str(part)
    return not (text[:1].isupper() or "[" in text or text in {"str", "int", "float", "bool", "bytes"})


def _refusal(message: str, parameter: str | None, body: dict[str, Any]) -> RequestRefused:
    message = _SOURCE_LINE.sub("", without_quotes(message, body)).strip()[:MAX_MESSAGE]
    if "not supported by xgrammar" in message:
        message += _OTHER_BACKEND
    code = _CODES.get((parameter or "").split(".")[0])
    if code is None and _no_room_left(message, parameter, body):
        code, message = "context_length_exceeded", "the prompt fills the context: no room for an answer"
    if code is None:
        code = "context_length_exceeded" if _TOO_LONG.search(message) else None
    if code is None:
        code = "invalid_json_schema" if _ABOUT_SCHEMA.search(message) else "invalid_request"
    return RequestRefused(code, message, param=parameter)


def _no_room_left(message: str, parameter: str | None, body: dict[str, Any]) -> bool:
    """vLLM cuts ``max_tokens`` to what the context leaves, and then finds fault with the 0 it got."""
    if parameter != "max_tokens" or "must be at least 1, got 0" not in message:
        return False
    return all(body.get(name) != 0 for name in _ANSWER_FIELDS)


def without_quotes(message: str, body: dict[str, Any]) -> str:
    """``message`` with every longer text of ``body`` that it quotes cut out: errors carry no prompts.

    Finds whole texts of 12 characters and more, and any stretch of 24 characters of one, also in the
    escaped form of ``repr``.
    """
    message = message[: 4 * MAX_MESSAGE]
    windows = {message[start : start + _WINDOW] for start in range(len(message) - _WINDOW + 1)}
    for text in _texts(body):
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


def _texts(value: Any) -> Iterator[str]:
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
