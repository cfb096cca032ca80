"""Scores and rankings: how well documents go with a query."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import shake_128
from itertools import repeat
from typing import Any

from dray.errors import RequestRefused
from dray.kinds.kind import MAX_SEQUENCES, Body, EngineKind, Kind, OutputColumn

Form = tuple[str, str]
"""The names of two fields of a body: of its queries, and of its documents."""

_SCORE: tuple[Form, ...] = (
    ("queries", "documents"),
    ("text_1", "text_2"),
    ("data_1", "data_2"),
    ("queries", "items"),
)
_RERANK: tuple[Form, ...] = (("query", "documents"),)
FORMS = {"score": _SCORE, "rerank": _RERANK}
"""By the name of the kind: vLLM takes each of these."""


def form_of(kind: str, body: Body) -> Form | None:
    """The form that a body has; None where a field is missing."""
    given = {name for name, value in body.items() if value is not None}
    return next((form for form in FORMS[kind] if given.issuperset(form)), None)


def _score_body(prompt: str) -> Body:
    return {"queries": prompt}


def _rerank_body(prompt: str) -> Body:
    return {"query": prompt}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pairs(queries: Any, documents: Any) -> Iterator[tuple[Any, Any]]:
    """Each document beside its query, or beside the one that there is."""
    first, second = _listed(queries), _listed(documents)
    return zip(repeat(first[0]) if len(first) == 1 else first, second, strict=False)


def _score_pairs(body: Body) -> Iterator[tuple[Any, Any]]:
    form = form_of("score", body)
    return _pairs(body[form[0]], body[form[1]]) if form else iter(())


def _rerank_pairs(body: Body) -> Iterator[tuple[Any, Any]]:
    return _pairs(body.get("query"), body.get("documents"))


def _score_prompts(body: Body) -> tuple[str, int]:
    """An engine that embeds both sides takes a sequence for each query, too, which is not counted."""
    form = form_of("score", body)
    if form is None:
        return "documents", 1
    return max(((name, len(_listed(body[name]))) for name in reversed(form)), key=lambda one: one[1])


def _rerank_prompts(body: Body) -> tuple[str, int]:
    return "documents", len(_listed(body.get("documents")))


def _drawn(count: int, digest: str) -> list[float]:
    """Scores from 0 to 1 for a simulated answer."""
    return [byte / 255 for byte in shake_128(bytes.fromhex(digest)).digest(min(count, MAX_SEQUENCES))]


def _simulated_score(body: Body, text: str, digest: str) -> Body:
    scores = _drawn(_score_prompts(body)[1], digest)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {"object": "list", "data": data}


def _top(body: Body) -> int:
    """``top_n`` as vLLM reads it."""
    given = body.get("top_n", 0)
    if isinstance(given, str) and given.isdecimal():
        given = int(given)
    if type(given) is not int or given < 0:
        raise RequestRefused("invalid_request", "top_n must be a whole number", param="top_n")
    return given


def _simulated_rerank(body: Body, text: str, digest: str) -> Body:
    documents = _listed(body.get("documents"))
    scores = _drawn(len(documents), digest)
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: _top(body) or None]
    results = [
        {"index": index, "document": {"text": documents[index]}, "relevance_score": scores[index]}
        for index in best
    ]
    return {"object": "list", "results": results}


def read_score(body: Body) -> float | None:
    """The score of the first pair, of the best document, or of the likeliest class."""
    first = (body.get("data") or body.get("results") or [{}])[0]
    if "probs" in first:
        return max(first["probs"], default=None)
    found: float | None = first.get("score", first.get("relevance_score"))
    return found


SCORE_COLUMN = OutputColumn(name="score", type="number", read=read_score)
SCORING = EngineKind(
    name="scoring",
    does="scores",
    serving="dray.engine.vllm_adapter.kinds.scoring:ScoringServing",
    arguments={"runner": "pooling"},
    generates=False,
    splits_prompts=False,
    fields=frozenset({"use_activation", "instruction", "max_tokens_per_query", "max_tokens_per_doc"}),
)
SCORE = Kind(
    name="score",
    url="/v1/score",
    also=("/score",),
    engine=SCORING,
    texts=tuple(dict.fromkeys(name for form in _SCORE for name in form)),
    body=_score_body,
    documents="documents",
    pairs=_score_pairs,
    prompts=_score_prompts,
    proof={"queries": "Say yes.", "documents": "Yes."},
    simulated=_simulated_score,
    columns=(SCORE_COLUMN,),
)
RERANK = Kind(
    name="rerank",
    url="/v1/rerank",
    also=("/rerank", "/v2/rerank"),
    engine=SCORING,
    texts=("query", "documents"),
    body=_rerank_body,
    documents="documents",
    pairs=_rerank_pairs,
    prompts=_rerank_prompts,
    proof={"query": "Say yes.", "documents": "Yes."},
    simulated=_simulated_rerank,
    columns=(SCORE_COLUMN,),
)
