"""What a request asks for: its prompts, before they are tokens, and the most tokens of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.kinds import KINDS, LENGTH_FIELDS, MAX_PAIR_CHARACTERS, MAX_SEQUENCES, Body, Kind, characters_of
from dray.requests.precision import whole

_MOST_ANSWERS = 128
_COMPLETION = "/v1/completions"
_USUAL_COMPLETION = 16  # tokens, where a completion says no max_tokens: as in OpenAI's API, and in vLLM

COUNTED_FIELDS = frozenset(
    {
        "messages", "prompt", "input", "tools", "documents", "reasoning_effort",
        "query", "queries", "items", "text_1", "text_2", "data_1", "data_2",
        "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
        "add_special_tokens", "truncate_prompt_tokens",
        *LENGTH_FIELDS, "min_tokens", "ignore_eos", "n",
        "instructions", "reasoning",
    }
)  # fmt: skip
"""The request fields that change how many tokens a request reads and writes."""


class Unreadable(ValueError):  # noqa: N818  a verdict on one row
    """The engine will refuse this body; it asks for no tokens. The text quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt in words; ``special``: the tokenizer adds its own tokens, such as one that begins a text."""

    text: str
    special: bool


class Rendered(list[int]):
    """The token ids of a conversation that has ``images``; for tokenizers that make no text of it."""

    def __init__(self, tokens: list[int], *, images: int) -> None:
        super().__init__(tokens)
        self.images = images


Prompt = Text | list[int]
"""A text, or token ids: those that the user gives, or a conversation's."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompts of a request, and the most tokens that it generates; None where nothing bounds them.

    The engine runs ``answers`` sequences for each prompt; ``most_output`` is that of all of them together.
    ``cut`` is how many tokens of a prompt are kept, the last ones; None for all. ``exact``: the answer has
    that many tokens in any case.
    """

    prompts: list[Prompt]
    most_output: int | None
    exact: bool = False
    cut: int | None = None
    answers: int = 1


Render = Callable[[Body, bool], str | Rendered]
"""A conversation as the one text that the model reads, or its tokens; whether the model is to answer it."""


def asked(url: str, body: Body, render: Render) -> Asked:
    """The prompts of a request.

    Raises:
        Unreadable: the engine cannot honour it.
    """
    kind = KINDS[url]
    body = kind.as_chat(body)
    if body.get("messages") is not None:
        prompts = [_conversation(one, render, answered=kind.engine.generates) for one in _conversations(body)]
    elif kind.pairs is not None:
        prompts = list(_pairs(kind, body))
    else:
        field, _ = kind.prompts(body)
        special = bool(body.get("add_special_tokens", True))
        prompts = list(_plain(body.get(field), special=special))
    if not prompts:
        raise Unreadable("no prompt")
    if not kind.engine.generates:
        return Asked(prompts, 0, exact=True, cut=_cut(body))
    most = _USUAL_COMPLETION if url == _COMPLETION and _says_no_length(body) else _most(body)
    answers = _answers(body)
    return Asked(
        prompts,
        None if most is None else most * answers * len(prompts),
        exact=most is not None and _fills(body, most),
        cut=_cut(body),
        answers=answers,
    )


def _conversations(body: Body) -> Iterator[Body]:
    """One body for each conversation: embeddings may ask for several."""
    messages = body["messages"]
    if isinstance(messages, list) and messages and all(isinstance(one, list) for one in messages):
        yield from ({**body, "messages": one} for one in messages)
    else:
        yield body


def _conversation(body: Body, render: Render, *, answered: bool) -> Prompt:
    rendered = render(body, answered)
    if not isinstance(rendered, str):
        return rendered
    return Text(rendered, special=bool(body.get("add_special_tokens", False)))


def _pairs(kind: Kind, body: Body) -> Iterator[Prompt]:
    """A text for each pair. A template, or what stands between the two, is some tokens more."""
    assert kind.pairs is not None
    too_many = kind.prompts(body)[1] > MAX_SEQUENCES
    if too_many or characters_of(kind.pairs(body)) > MAX_PAIR_CHARACTERS:
        raise Unreadable("more pairs, or longer ones, than a row may hold")
    for one, other in kind.pairs(body):
        if not (isinstance(one, str) and isinstance(other, str)):
            raise Unreadable("one of a pair is no text")
        yield Text(f"{one}\n{other}", special=True)


def _plain(value: Any, *, special: bool) -> Iterator[Prompt]:
    """A text, token ids, or a list of either."""
    if isinstance(value, str):
        yield Text(value, special)
    elif _is_ids(value):
        yield value
    elif isinstance(value, list) and value:
        for part in value:
            if not (isinstance(part, str) or _is_ids(part)):
                raise Unreadable("a prompt is neither a text nor token ids")
            yield Text(part, special) if isinstance(part, str) else part
    else:
        raise Unreadable("no prompt")


def _is_ids(value: Any) -> bool:
    return bool(
        isinstance(value, list) and value and all(type(one) is int and 0 <= one < 2**32 for one in value)
    )


def _most(body: Body) -> int | None:
    for name in LENGTH_FIELDS:
        value = whole(body.get(name))
        if value is not None:
            if type(value) is not int or not 0 <= value < 2**31:
                raise Unreadable(f"{name} is no number of tokens")
            return value
    return None


def _says_no_length(body: Body) -> bool:
    """Null is a length: as many tokens as there is room for."""
    return not body.keys() & set(LENGTH_FIELDS)


def _answers(body: Body) -> int:
    count = whole(body.get("n"))
    if count is None:
        return 1
    if type(count) is not int or not 1 <= count <= _MOST_ANSWERS:
        raise Unreadable("n is no number of answers")
    return count


def _fills(body: Body, most: int) -> bool:
    """Whether the answer cannot end before its limit."""
    return bool(body.get("ignore_eos")) or body.get("min_tokens") == most


def _cut(body: Body) -> int | None:
    value = whole(body.get("truncate_prompt_tokens"))
    return value if type(value) is int and value >= 0 else None
