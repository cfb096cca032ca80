"""The fields that bodies of requests may have, known without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from dray.engine.declared import fields_of_class
from dray.errors import ConfigError, RequestRefused
from dray.kinds import all_kinds
from dray.requests.sameness import WITHOUT_EFFECT

OPENAI_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "context_management": (None,),
    "conversation": (None,),
    "function_call": (None,),
    "functions": (None,),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "suffix": (None,),
    "web_search_options": (None,),
}
"""Fields of OpenAI's that would change an answer: taken with the values that leave it as it is."""

_OF_TEMPLATES: dict[str, Any] = {
    "add_generation_prompt": True,
    "chat_template_kwargs": {},
    "continue_final_message": False,
    "documents": [],
}
_UNREAD_BY_HARMONY: dict[str, Any] = {
    **_OF_TEMPLATES,
    "add_special_tokens": False,
    "echo": False,
    "return_prompt_text": False,
    "truncate_prompt_tokens": None,
}
"""Fields of chats that vLLM does not look at there, each with the value that, like null, asks nothing."""

_PROTOCOL = "vllm.entrypoints.openai"
_CLASSES = (
    (f"{_PROTOCOL}.chat_completion.protocol", "ChatCompletionRequest"),
    (f"{_PROTOCOL}.completion.protocol", "CompletionRequest"),
    (f"{_PROTOCOL}.responses.protocol", "ResponsesRequest"),
)


def refuse_unknown_fields(names: Iterable[str]) -> None:
    """Refuse fields for all rows that no kind of request has, by the installed vLLM; none without one.

    Each row would be an error row (``unknown_field``), half a minute later.

    Raises:
        ConfigError: names the field, and what was probably meant.
    """
    found = [fields_of_class(module, name) for module, name in _CLASSES]
    if not all(found):
        return
    of_others = [kind.engine.fields for kind in all_kinds()]
    known = {*WITHOUT_EFFECT, *OPENAI_DEFAULTS}.union(*filter(None, found), *of_others)
    for name in names:
        if name in known:
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"--param {name[:64]}: no request has such a field, so each row would be an error row "
            f"(unknown_field){hint}"
        )


def refuse_unread_by_harmony(body: Mapping[str, Any]) -> None:
    """Refuse a chat for gpt-oss that asks what vLLM would not look at.

    Raises:
        RequestRefused: names the field.
    """
    name = _unread(body, _UNREAD_BY_HARMONY)
    if name is not None:
        told = f"`{name}` cannot be honoured: {_why(name)}"
        raise RequestRefused("unsupported_field", told, param=name)


def refuse_param_unread_by_harmony(fields: Mapping[str, Any]) -> None:
    """The same of a job's ``fields`` for all rows: those that only chats have.

    Raises:
        ConfigError: names the field.
    """
    name = _unread(fields, _OF_TEMPLATES)
    if name is not None:
        raise ConfigError(f"--param {name}: {_why(name)}")


def refuse_template_for_harmony(arguments: Mapping[str, Any]) -> None:
    """Refuse a chat template for gpt-oss.

    Raises:
        ConfigError: names the engine argument.
    """
    for name in ("chat_template", "chat_template_content_format"):
        if arguments.get(name) not in (None, "auto"):
            raise ConfigError(f"engine argument {name}: {_why(name)}")


def _unread(given: Mapping[str, Any], idle: Mapping[str, Any]) -> str | None:
    return next((name for name in idle if given.get(name) not in (None, idle[name])), None)


def _why(name: str) -> str:
    hint = "; `reasoning_effort` is a field of its own" if name == "chat_template_kwargs" else ""
    return (
        f"vLLM writes the prompts of gpt-oss without a chat template, and would ignore it; leave it out{hint}"
    )
