"""The kinds of requests: a table with one row for each, and one for each kind of engine that answers them.

Every other part of dray reads this table. A new kind is a row here, a serving class in
``dray/engine/vllm_adapter``, and their tests: nothing else asks which kind a request is of. The functions
of a row are plain module functions, because a row goes to other processes with the engine's settings.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import shake_128
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dray.errors import ConfigError, RequestRefused

Body = dict[str, Any]
Overflow = Literal["error", "shorten", "cut-head", "cut-tail"]
"""What becomes of a row that does not fit into the model's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """What the engines that answer some kinds of requests have in common; one job runs one kind of engine.

    ``does`` is for people: "this engine DOES". ``serving`` names the class that serves vLLM's side of it, as
    ``module:class``; it is imported in the replica alone. ``arguments`` are vLLM's engine arguments for it.
    ``generates`` engines take sampling fields, ``n`` answers and grammars. Engines that ``splits_prompts``
    may take a prompt in parts, so their token budget may be less than a prompt has.
    """

    name: str
    does: str = field(compare=False)
    serving: str = field(compare=False)
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)
    generates: bool = field(compare=False)
    splits_prompts: bool = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumn:
    """A column of ``output.parquet`` with what a kind is asked for; ``read`` gives None for others."""

    name: str
    type: Literal["text", "number", "numbers"]
    read: Callable[[Body], Any] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kind:
    """What a request asks of the model: one row of the table.

    Args:
        name: of options, stores and fingerprints; it never changes.
        url: the endpoint in the OpenAI batch format.
        engine: what answers it.
        texts: the fields of a body that hold its prompts; one of them must be there. Their lists may be long.
        conversations: whether columns of chat messages and a system prompt can make such a request.
        body: the body for a prompt out of columns, and a system prompt where ``conversations``.
        prompts: the name of the field whose prompts count, and how many sequences they are before ``n``.
        proof: a short body that any healthy engine answers or refuses.
        simulated: the answer of the simulated engine for a body, its text and the digest of the prompt (64
            hexadecimal digits), without id, model and usage.
        column: what of an answer is a column of ``output.parquet``.
    """

    CHAT: ClassVar[Kind]
    COMPLETION: ClassVar[Kind]
    EMBEDDING: ClassVar[Kind]

    name: str
    url: str = field(compare=False)
    engine: EngineKind = field(compare=False)
    texts: tuple[str, ...] = field(compare=False)
    conversations: bool = field(default=False, compare=False)
    body: Callable[[str, str | None], Body] = field(compare=False)
    prompts: Callable[[Body], tuple[str, int]] = field(compare=False)
    proof: Body = field(compare=False)
    simulated: Callable[[Body, str, str], Body] = field(compare=False)
    column: OutputColumn = field(compare=False)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        """As an enumeration's member, which it was once: fingerprints of jobs hold this text."""
        return f"<Kind.{self.name.upper()}: {self.name!r}>"

    @classmethod
    def of_url(cls, url: str) -> Kind | None:
        """The kind that ``url`` names, or None for an endpoint dray does not offer."""
        return KINDS.get(url)

    @classmethod
    def named(cls, name: str) -> Kind:
        """The kind of this name.

        Raises:
            ConfigError: there is none.
        """
        for kind in KINDS.values():
            if kind.name == name:
                return kind
        raise ConfigError(f"unknown kind {name!r}: dray has {', '.join(map(str, KINDS.values()))}")


def count_prompts(value: Any) -> int:
    """The prompts in a ``prompt`` or ``input``: a list of token ids is one."""
    if not isinstance(value, list) or all(type(item) is int for item in value):
        return 1
    return len(value)


def _chat_body(prompt: str, system: str | None) -> Body:
    before = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*before, {"role": "user", "content": prompt}]}


def _chat_prompts(body: Body) -> tuple[str, int]:
    return "messages", 1


def _completion_body(prompt: str, system: str | None) -> Body:
    return {"prompt": prompt}


def _completion_prompts(body: Body) -> tuple[str, int]:
    return "prompt", count_prompts(body.get("prompt"))


def _embedding_body(prompt: str, system: str | None) -> Body:
    return {"input": prompt}


def _embedding_prompts(body: Body) -> tuple[str, int]:
    """A list of lists of messages is several conversations."""
    if "messages" not in body:
        return "input", count_prompts(body.get("input"))
    messages = body["messages"]
    several = isinstance(messages, list) and any(isinstance(one, list) for one in messages)
    return "messages", len(messages) if several else 1


def _simulated_chat(body: Body, text: str, digest: str) -> Body:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return {"object": "chat.completion", "choices": [choice]}


def _simulated_completion(body: Body, text: str, digest: str) -> Body:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "length"}]}


def _simulated_embedding(body: Body, text: str, digest: str) -> Body:
    """Eight numbers, or as many as ``dimensions`` says; in base64 they are little-endian float32."""
    import numpy as np  # here alone: the table is read at every start

    wanted = body.get("dimensions")
    wanted = 8 if wanted is None else wanted
    if type(wanted) is not int or not 1 <= wanted <= 65_536:
        raise RequestRefused("invalid_request", "dimensions must be from 1 to 65536", param="dimensions")
    drawn = np.frombuffer(shake_128(bytes.fromhex(digest)).digest(wanted), dtype=np.uint8)
    vector = drawn.astype("<f4") / np.float32(255)
    asked = body.get("encoding_format", "float")
    given = b64encode(vector.tobytes()).decode() if asked == "base64" else vector.tolist()
    return {"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": given}]}


def _text(body: Body) -> str | None:
    """The text of the first choice."""
    choices = body.get("choices")
    if not choices:
        return None
    message = choices[0].get("message")
    found: str | None = choices[0].get("text") if message is None else message.get("content")
    return found


def _embedding(body: Body) -> list[float] | None:
    """The first embedding. One in base64 stays in the response alone."""
    data = body.get("data")
    found = data[0].get("embedding") if data else None
    return found if isinstance(found, list) else None


GENERATION = EngineKind(
    name="generation",
    does="generates",
    serving="dray.engine.vllm_adapter.serving:GenerationServing",
    generates=True,
    splits_prompts=True,
)
EMBEDDING = EngineKind(
    name="embedding",
    does="embeds",
    serving="dray.engine.vllm_adapter.embedding:EmbeddingServing",
    arguments={"runner": "pooling"},
    generates=False,
    splits_prompts=False,  # many of these models attend to the whole prompt at once
)
_TEXT = OutputColumn(name="text", type="text", read=_text)

Kind.CHAT = Kind(
    name="chat",
    url="/v1/chat/completions",
    engine=GENERATION,
    texts=("messages",),
    conversations=True,
    body=_chat_body,
    prompts=_chat_prompts,
    proof={"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0},
    simulated=_simulated_chat,
    column=_TEXT,
)
Kind.COMPLETION = Kind(
    name="completion",
    url="/v1/completions",
    engine=GENERATION,
    texts=("prompt",),
    body=_completion_body,
    prompts=_completion_prompts,
    # Token ids need neither a chat template nor a tokenizer that can read this text.
    proof={"prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0},
    simulated=_simulated_completion,
    column=_TEXT,
)
Kind.EMBEDDING = Kind(
    name="embedding",
    url="/v1/embeddings",
    engine=EMBEDDING,
    texts=("input", "messages"),
    body=_embedding_body,
    prompts=_embedding_prompts,
    proof={"input": "Say yes."},
    simulated=_simulated_embedding,
    column=OutputColumn(name="embedding", type="numbers", read=_embedding),
)

KINDS: dict[str, Kind] = {kind.url: kind for kind in (Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING)}
"""The table, by the URL that rows name."""

if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(kind.name for kind in KINDS.values())]
    """The names of the table, for forms and the command line."""


def kinds_of(engine: EngineKind) -> list[Kind]:
    """The kinds that an engine answers."""
    return [kind for kind in KINDS.values() if kind.engine == engine]


def of_conversations() -> str:
    """The kinds that conversations can be made into, as messages name them."""
    return " or ".join(kind.name for kind in KINDS.values() if kind.conversations)


def text_fields() -> list[str]:
    """The fields of all kinds that hold prompts."""
    return list(dict.fromkeys(name for kind in KINDS.values() for name in kind.texts))


def output_columns() -> list[OutputColumn]:
    """The columns that all kinds together give ``output.parquet``."""
    return list(dict.fromkeys(kind.column for kind in KINDS.values()))
