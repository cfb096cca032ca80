"""What a row of the table of kinds holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Body = dict[str, Any]
Overflow = Literal["error", "shorten", "cut-head", "cut-tail"]
"""What becomes of a row that does not fit into the model's context."""

MAX_SEQUENCES = 2048
"""Sequences that one row may ask for: OpenAI's limit on the inputs of an embeddings request."""
MAX_PAIR_CHARACTERS = 32 * 1024 * 1024
"""Characters of all pairs of one row, a query counted with each document: 20 s of a tokenizer's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """What the engines that answer some kinds of requests have in common; one job runs one kind of engine.

    ``does`` is for people: "this engine DOES". ``serving`` names the class that serves vLLM's side of it, as
    ``module:class``; it is imported in the replica alone. ``arguments`` are vLLM's engine arguments for it.
    ``generates`` engines take sampling fields, ``n`` answers and grammars. A job may set the ``fields`` for
    all rows; an engine that generates and names some takes no others, nor ``n`` answers or grammars. It is
    ``greedy`` where rows without a temperature are not sampled. Engines that ``splits_prompts`` may take a
    prompt in parts, so their token budget may be less than a prompt has.
    """

    name: str
    does: str = field(compare=False)
    serving: str = field(compare=False)
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)
    generates: bool = field(compare=False)
    splits_prompts: bool = field(compare=False)
    fields: frozenset[str] = field(default=frozenset(), compare=False)
    greedy: bool = field(default=False, compare=False)

    @property
    def answers_freely(self) -> bool:
        """Whether rows may ask for several answers, and for the form that they have."""
        return self.generates and not self.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumn:
    """A column of ``output.parquet`` with what a kind is asked for; ``read`` gives None for others."""

    name: str
    type: Literal["text", "number", "numbers"]
    read: Callable[[Body], Any] = field(compare=False)


def itself(body: Body) -> Body:
    """A body whose messages are its chat."""
    return body


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kind:
    """What a request asks of the model: one row of the table.

    Args:
        name: of options, stores and fingerprints; it never changes.
        url: the endpoint in the OpenAI batch format.
        also: other URLs that rows may name it by.
        engine: what answers it.
        texts: the fields of a body that hold its prompts; one of them must be there. Their lists may be long.
        body: the body for a prompt out of columns.
        conversation: the body for a prompt as a message, and a system prompt; None where a request holds no
            chat messages.
        documents: the field of a body for the texts that its prompt is held against; None where it has none.
        sound: the field of a body for a sound, or the place of one; None where it has none.
        sees_and_hears: whether its messages may hold sounds and videos; all messages may hold images.
        messages: the field of a body for its conversation, where it has one.
        templated: whether a chat template may make its prompts.
        as_chat: the chat that a body stands for, where it has messages; itself for most kinds.
        spelled: its own word for fields that a job sets for the rows of other kinds.
        echoes: fields of a body without effect on the model that stand in the answer.
        pairs: those two of each pair that is compared, for kinds with ``documents``.
        prompts: the name of the field whose prompts count, and how many sequences they are before ``n``.
        proof: a short body that any healthy engine answers or refuses.
        simulated: the answer of the simulated engine for a body, its text and the digest of the prompt (64
            hexadecimal digits), without id, model and usage.
        columns: what of an answer is a column of ``output.parquet``.
    """

    CHAT: ClassVar[Kind]
    COMPLETION: ClassVar[Kind]
    EMBEDDING: ClassVar[Kind]
    SCORE: ClassVar[Kind]
    RERANK: ClassVar[Kind]
    CLASSIFICATION: ClassVar[Kind]
    TRANSCRIPTION: ClassVar[Kind]
    TRANSLATION: ClassVar[Kind]
    RESPONSE: ClassVar[Kind]

    name: str
    url: str = field(compare=False)
    also: tuple[str, ...] = field(default=(), compare=False)
    engine: EngineKind = field(compare=False)
    texts: tuple[str, ...] = field(compare=False)
    body: Callable[[str], Body] = field(compare=False)
    conversation: Callable[[str, str | None], Body] | None = field(default=None, compare=False)
    documents: str | None = field(default=None, compare=False)
    sound: str | None = field(default=None, compare=False)
    sees_and_hears: bool = field(default=False, compare=False)
    messages: str = field(default="messages", compare=False)
    templated: bool = field(default=True, compare=False)
    as_chat: Callable[[Body], Body] = field(default=itself, compare=False)
    spelled: Mapping[str, str] = field(default_factory=dict, compare=False)
    echoes: frozenset[str] = field(default=frozenset(), compare=False)
    pairs: Callable[[Body], Iterable[tuple[Any, Any]]] | None = field(default=None, compare=False)
    prompts: Callable[[Body], tuple[str, int]] = field(compare=False)
    proof: Body = field(compare=False)
    simulated: Callable[[Body, str, str], Body] = field(compare=False)
    columns: tuple[OutputColumn, ...] = field(compare=False)

    @property
    def takes_sound(self) -> bool:
        """Whether its requests may hold sounds."""
        return self.sees_and_hears or self.sound is not None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        """The text of an enumeration's member, which it was once: fingerprints of jobs hold this text."""
        return f"<Kind.{self.name.upper()}: {self.name!r}>"


def characters_of(pairs: Iterable[tuple[Any, Any]]) -> int:
    """The characters of pairs of texts; what is no text has none."""
    return sum(len(text) for pair in pairs for text in pair if isinstance(text, str))


def count_prompts(value: Any) -> int:
    """The prompts in a ``prompt`` or ``input``: a list of token ids is one."""
    if not isinstance(value, list) or all(type(item) is int for item in value):
        return 1
    return len(value)


def conversation(prompt: str, system: str | None) -> Body:
    """A body with a message of the user, after one of the system."""
    before = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*before, {"role": "user", "content": prompt}]}


def input_of(prompt: str) -> Body:
    """A body whose prompts are its ``input``."""
    return {"input": prompt}


def inputs(body: Body) -> tuple[str, int]:
    """The prompts of ``input`` or ``messages``: a list of lists of messages is several conversations."""
    if "messages" not in body:
        return "input", count_prompts(body.get("input"))
    messages = body["messages"]
    several = isinstance(messages, list) and any(isinstance(one, list) for one in messages)
    return "messages", len(messages) if several else 1
