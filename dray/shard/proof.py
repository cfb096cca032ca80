"""Proof that an engine can answer: a short request of dray's own, before a suspect is fed.

An engine that dies under it accuses no row; one that answers it and then dies under a suspect does. So a job
of one bad row ends with one error row, and one on a model or a device that always dies blames no row.
"""

from __future__ import annotations

from typing import Any

from dray.engine.client import ReplicaClient
from dray.requests.model import Kind, Request
from dray.requests.spool import decode, encode

_PREFIX = "proof"
_GENERATION: tuple[tuple[Kind, dict[str, Any]], ...] = (
    (Kind.CHAT, {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0}),
    # Token ids need neither a chat template nor a tokenizer that can read this text.
    (Kind.COMPLETION, {"prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0}),
)
_EMBEDDING: tuple[tuple[Kind, dict[str, Any]], ...] = ((Kind.EMBEDDING, {"input": "Say yes."}),)


def prove(replica: ReplicaClient, session: str, row: bytes) -> None:
    """Have the replica answer requests of the kind of ``row``, a line of the spool; the answers are dropped.

    A refusal is an answer, too: the engine lives. Returns once all are out.

    Raises:
        ReplicaLostError, EngineDeadError: the replica went away before it was given a row.
    """
    own = proof_session(session)
    embeds = Kind.of_url(decode(row).url) is Kind.EMBEDDING
    lines = [
        encode(Request(index=number, custom_id=f"{_PREFIX}-{number}", url=kind.url, body=body))
        for number, (kind, body) in enumerate(_EMBEDDING if embeds else _GENERATION)
    ]
    replica.feed(own, lines, last=True)
    for _ in replica.results(own, len(lines)):
        pass


def proof_session(session: str) -> str:
    """The name of the proof's session, before that of a shard's attempt."""
    return f"{_PREFIX}/{session}"
