"""The fields that bodies of requests may have, known without an engine."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from dray.engine.declared import fields_of_class
from dray.errors import ConfigError
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
