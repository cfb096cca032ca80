"""One seam for vLLM's errors: what a foreign exception or error response means for a row."""

from __future__ import annotations

import binascii
import errno
import re
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.exceptions import GenerationError, VLLMClientError
from vllm.renderers.chat_utils import ChatCompletionMessageParam
from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

from dray.codes import ErrorCode
from dray.engine.redaction import without_quotes
from dray.errors import EngineDeadError, RequestRefused
from dray.kinds import LENGTH_FIELDS
from dray.requests.media.parts import conversations_of

_TOO_LONG = re.compile(
    r"maximum (context|model|input)? ?length|max_model_len|context length|longer than", re.IGNORECASE
)
_ABOUT_SCHEMA = re.compile(r"schema|grammar|structured.output", re.IGNORECASE)
_CODES: dict[str, ErrorCode] = {
    "model": "model_mismatch",
    "response_format": "invalid_json_schema",
    "structured_outputs": "invalid_json_schema",
}
_OF_AN_IMAGE = ("Failed to load image", "Image dimensions", "Only base64 data URLs", "Invalid base64")
_TOO_SHORT = re.compile(r"The audio\b.*\btoo short\b", re.DOTALL)  # for one piece of a model's encoder
_AT_ITS_END = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
# xgrammar's messages carry the time of day, and error rows are the same bytes in every run.
_SOURCE_LINE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
_OTHER_BACKEND = ' The engine argument structured_outputs_config={"backend": "guidance"} takes more of them.'
_read_message = TypeAdapter(ChatCompletionMessageParam).validate_python
MAX_MESSAGE = 500  # characters; enough for every message of vLLM's own, too little for a prompt


def refusal_of(error: BaseException, body: dict[str, Any], *, has_grammar: bool = False) -> RequestRefused:
    """The refusal that an exception from reading, submitting or running ``body`` stands for.

    ``has_grammar`` says whether the engine was to hold the answer to a schema or grammar.
    """
    if isinstance(error, RequestRefused):
        return error
    if _is_panic(error):
        return RequestRefused(
            "request_too_large",
            "the tokenizer gave up on a text of this row (PanicException); a very long run of spaces, or of "
            "other characters of one sort, does that: shorten it",
        )
    if isinstance(error, ValidationError):
        return _of_validation(error, body)
    if isinstance(error, GenerationError):
        return _of_generation(has_grammar=has_grammar)
    if isinstance(error, binascii.Error) or type(error).__module__.startswith("PIL."):
        return _no_image()
    if isinstance(error, VLLMClientError) or type(error) is ValueError or _is_template_error(error):
        # VLLMValidationError's str() quotes the rejected value; its first argument does not.
        message = str(error.args[0]) if error.args else type(error).__name__
        return _refusal(message, getattr(error, "parameter", None), body)
    # Whatever else a body provokes (TypeError, KeyError, RecursionError) says nothing to its author.
    return RequestRefused(
        "invalid_request",
        f"vLLM cannot read this body ({type(error).__name__}): a field is of the wrong type or shape",
    )


def is_the_engines(error: BaseException) -> bool:
    """Whether the engine, or its machine, is at its end: no body is to blame for that."""
    if not isinstance(error, Exception):
        return not _is_panic(error)
    if isinstance(error, OSError):
        return error.errno in _AT_ITS_END
    no_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    return no_thread or isinstance(error, MemoryError | VllmDeadError | EngineDeadError)


def _is_panic(error: BaseException) -> bool:
    """Whether code in Rust gave up, as a tokenizer does: pyo3's class for that is no ``Exception``."""
    return type(error).__name__ == "PanicException"


def is_too_long(error: Exception) -> bool:
    """Whether vLLM finds that a prompt does not fit into the context."""
    return bool(error.args) and _TOO_LONG.search(str(error.args[0])) is not None


def refusal_of_response(response: Any, body: dict[str, Any]) -> RequestRefused:
    """The refusal that one of vLLM's ``ErrorResponse`` objects stands for."""
    return _refusal(response.error.message, response.error.param, body)


def refusal_of_answer(error: BaseException) -> RequestRefused:
    """The refusal for an answer that cannot be built: half of a surrogate pair in a tool's arguments, say."""
    return RequestRefused(
        "invalid_response",
        f"the model's answer cannot be written as JSON ({type(error).__name__}): "
        "text that is not Unicode, or a value that JSON has no form for",
    )


def _is_template_error(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "jinja2"


def _no_image() -> RequestRefused:
    return RequestRefused(
        "invalid_image",
        "an image cannot be decoded: it is damaged, too large, or no JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF",
    )


def _of_generation(*, has_grammar: bool) -> RequestRefused:
    """A request that vLLM gave up on after it was admitted: its error says no more than that."""
    if has_grammar:
        return RequestRefused(
            "invalid_json_schema", "the schema or grammar could not be compiled for this model's tokenizer"
        )
    return RequestRefused("generation_failed", "vLLM ended this request with an internal error")


def _of_validation(error: ValidationError, body: dict[str, Any]) -> RequestRefused:
    """The problems of the alternative that fits best, where a field takes several types."""
    best = min(_alternatives(_problems_of(error, body)), key=_misfit)
    names = [str(part) for part in best[0]["loc"] if _is_name(part)]
    field = ".".join(name[:64] for name in names[:6])
    message = "; ".join(dict.fromkeys(map(_told, best[:3])))
    return _refusal(f"{field}: {message}" if field else message, names[0] if names else None, body)


def _problems_of(error: ValidationError, body: dict[str, Any]) -> list[Any]:
    """What pydantic found, with the whole place of each problem.

    It reads a message's parts and tool calls only when vLLM iterates over them, and then names them by their
    numbers alone. So the messages are read again one by one, up to the first that is bad.
    """
    problems = _listed(error)
    if isinstance(next(iter(problems[0]["loc"]), None), int):
        return next(_problems_in(body.get("messages")), problems)
    return problems


def _problems_in(messages: Any) -> Iterator[list[Any]]:
    """The problems of each message, or of each of its lists, that is bad."""
    for field, conversation in conversations_of(messages):
        for number, message in enumerate(conversation):
            its = place = (*field.rstrip("]").split("["), number)
            try:
                read = _read_message(message)
                for name in ("content", "tool_calls"):
                    place = (*its, name)
                    if not isinstance(read.get(name), str):
                        list(read.get(name) or ())
            except ValidationError as error:
                yield [problem | {"loc": (*place, *problem["loc"])} for problem in _listed(error)]


def _listed(error: ValidationError) -> list[Any]:
    return list(error.errors(include_input=False, include_url=False, include_context=False))


def _alternatives(problems: list[Any]) -> list[list[Any]]:
    """The problems of each member of a union.

    The classes of ``response_format`` have one name (``function-wrap[...]``): each says its type first.
    """
    found: dict[Any, list[Any]] = {}
    member = 0
    for problem in problems:
        loc = problem["loc"]
        tags = [number for number, part in enumerate(loc) if not _is_name(part)]
        known, within = (loc[: tags[0] + 1], loc[tags[0] + 1 :]) if tags else (loc[:1], loc[1:])
        if tags and loc[tags[0]].startswith("function-wrap[") and within in ((), ("type",)):
            member += 1
        found.setdefault((known, member), []).append(problem)
    return list(found.values())


def _misfit(problems: list[Any]) -> tuple[bool, int, bool]:
    """How badly an alternative fits: one for another role or type is out of the question."""
    other = any(
        problem["type"] == "literal_error" and problem["loc"][-1:] in (("role",), ("type",))
        for problem in problems
    )
    return other, len(problems), any(problem["type"].endswith("_type") for problem in problems)


def _told(problem: dict[str, Any]) -> str:
    if problem["type"] == "string_type" and problem["loc"][-1:] == ("arguments",):
        return "Input should be JSON text (a string)"  # data sets have objects there
    message: str = problem["msg"]
    return message.removeprefix("Value error, ")


def _is_name(part: Any) -> bool:
    """Whether a part of a location is a field or a position, and not pydantic's name for a type."""
    text = str(part)
    return not (text[:1].isupper() or "[" in text or text in {"str", "int", "float", "bool", "bytes"})


def _refusal(message: str, parameter: str | None, body: dict[str, Any]) -> RequestRefused:
    if message.startswith(_OF_AN_IMAGE):
        return _no_image()
    if _TOO_SHORT.match(message):
        return RequestRefused("invalid_audio", "a sound is too short: the model makes no token of it")
    message = _SOURCE_LINE.sub("", without_quotes(message[: 4 * MAX_MESSAGE], body)).strip()[:MAX_MESSAGE]
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
    return all(body.get(name) != 0 for name in LENGTH_FIELDS)
