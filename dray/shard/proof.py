"""Proof that an engine can answer: a short request of dray's own, before a suspect is fed.

An engine that dies under it accuses no row; one that answers it and then dies under a suspect does. So a job
of one bad row ends with one error row, and one on a model or a device that always dies blames no row.
"""

from __future__ import annotations

from dray.engine.client import ReplicaClient
from dray.kinds import KINDS, kinds_of
from dray.requests.model import Request
from dray.requests.spool.spool import decode, encode

_PREFIX = "proof"


def prove(replica: ReplicaClient, session: str, row: bytes) -> None:
    """Have the replica answer requests of all kinds that the engine of ``row``, a line of the spool, answers.

    The answers are dropped.

    A refusal is an answer, too: the engine lives. Returns once all are out.

    Raises:
        ReplicaLostError, EngineDeadError: the replica went away before it was given a row.
    """
    own = proof_session(session)
    lines = [
        encode(Request(index=number, custom_id=f"{_PREFIX}-{number}", url=kind.url, body=kind.proof))
        for number, kind in enumerate(kinds_of(KINDS[decode(row).url].engine))
    ]
    replica.feed(own, lines, last=True)
    for _ in replica.results(own, len(lines)):
        pass


def proof_session(session: str) -> str:
    """The name of the proof's session, before that of a shard's attempt."""
    return f"{_PREFIX}/{session}"
