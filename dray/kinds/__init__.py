"""The kinds of requests: a table with one row for each, and one for each kind of engine that answers them.

Every other part of dray reads this table. A new kind is a row here, a serving class in
``dray/engine/vllm_adapter``, and their tests: nothing else asks which kind a request is of. The functions
of a row are plain module functions, because a row goes to other processes with the engine's settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dray.errors import ConfigError
from dray.kinds import embedding
from dray.kinds.classification import CLASSIFICATION, CLASSIFYING
from dray.kinds.embedding import EMBEDDING
from dray.kinds.generation import CHAT, COMPLETION, GENERATION, LENGTH_FIELDS, finish_reason, was_cut
from dray.kinds.kind import (
    MAX_PAIR_CHARACTERS,
    MAX_SEQUENCES,
    Body,
    EngineKind,
    Kind,
    OutputColumn,
    Overflow,
    characters_of,
    count_prompts,
)
from dray.kinds.response import RESPONSE
from dray.kinds.scoring import RERANK, SCORE, SCORING
from dray.kinds.speech import SPEECH, TRANSCRIPTION, TRANSLATION

Kind.CHAT = CHAT
Kind.COMPLETION = COMPLETION
Kind.EMBEDDING = embedding.OF_TEXTS
Kind.SCORE = SCORE
Kind.RERANK = RERANK
Kind.CLASSIFICATION = CLASSIFICATION
Kind.TRANSCRIPTION = TRANSCRIPTION
Kind.TRANSLATION = TRANSLATION
Kind.RESPONSE = RESPONSE

KINDS: dict[str, Kind] = {
    url: kind
    for kind in (
        *(CHAT, COMPLETION, embedding.OF_TEXTS, SCORE, RERANK, CLASSIFICATION),
        *(TRANSCRIPTION, TRANSLATION, RESPONSE),
    )
    for url in (kind.url, *kind.also)
}
"""The table, by the URLs that rows name; :func:`all_kinds` has each kind once."""


def all_kinds() -> list[Kind]:
    """The kinds, each once."""
    return list(dict.fromkeys(KINDS.values()))


if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(kind.name for kind in all_kinds())]
    """The names of the table, for forms and the command line."""


def kind_named(name: str) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: there is none.
    """
    for kind in all_kinds():
        if kind.name == name:
            return kind
    raise ConfigError(f"unknown kind {name!r}: dray has {', '.join(map(str, all_kinds()))}")


def kinds_of(engine: EngineKind) -> list[Kind]:
    """The kinds that an engine answers."""
    return [kind for kind in all_kinds() if kind.engine == engine]


def of_conversations() -> str:
    """The kinds that conversations can be made into, as messages name them."""
    return _listed([kind for kind in all_kinds() if kind.conversation is not None])


def with_documents() -> str:
    """The kinds that hold a prompt against documents, as messages name them."""
    return _listed([kind for kind in all_kinds() if kind.documents is not None])


def with_sound() -> str:
    """The kinds that may hold sounds, as messages name them."""
    return _listed([kind for kind in all_kinds() if kind.takes_sound])


def with_videos() -> str:
    """The kinds that may hold videos, as messages name them."""
    return _listed([kind for kind in all_kinds() if kind.sees_and_hears])


def text_fields() -> list[str]:
    """The fields of all kinds that hold prompts."""
    return list(dict.fromkeys(name for kind in all_kinds() for name in kind.texts))


def output_columns() -> list[OutputColumn]:
    """The columns that all kinds together give ``output.parquet``."""
    return list(dict.fromkeys(column for kind in all_kinds() for column in kind.columns))


def _listed(kinds: list[Kind]) -> str:
    return " or ".join(kind.name for kind in kinds)


__all__ = [
    "CLASSIFYING",
    "EMBEDDING",
    "GENERATION",
    "KINDS",
    "LENGTH_FIELDS",
    "MAX_PAIR_CHARACTERS",
    "MAX_SEQUENCES",
    "SCORING",
    "SPEECH",
    "Body",
    "EngineKind",
    "Kind",
    "KindName",
    "OutputColumn",
    "Overflow",
    "all_kinds",
    "characters_of",
    "count_prompts",
    "finish_reason",
    "kind_named",
    "kinds_of",
    "of_conversations",
    "output_columns",
    "text_fields",
    "was_cut",
    "with_documents",
    "with_sound",
    "with_videos",
]
