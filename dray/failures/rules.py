"""The table of causes: what went wrong, and what follows for the shard, its task and the job.

:func:`dray.failures.causes.decide` takes the first of :data:`RULES` that fits an error and its circumstances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dray.codes import ErrorCode
from dray.failures.conditions import (
    INTERRUPTIONS,
    NO_ROOM_TRIES,
    Fits,
    has_sign,
    is_accused_by_nodes,
    is_convicted,
    is_crash,
    is_lone,
    is_node_loss,
    is_of_its_place,
    is_of_the_engine,
    is_oom,
    is_spot,
    is_store_away,
    made_no_progress,
    stays_full,
)
from dray.failures.effects import SHRINK_STEPS, Budget, Effect, OnShard, OnTask, Wait
from dray.failures.facts import Cause
from dray.failures.foreign import Sign

STORE_PATIENCE = 1800.0
"""Seconds that a store may be away, or take no rows, before the job is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table: when it fits, in words and as a test, what then follows, and what to do."""

    cause: Cause
    when: str
    fits: Fits
    effect: Effect
    advice: str = ""


_ENGINE = (Budget.REPLICA, Budget.MODEL)
_NODE = (Budget.INFRA, Budget.NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """One way in which a row ends what runs it, and how its search is told and charged."""

    cause: Cause
    what: str
    died: Fits
    code: ErrorCode
    charges: tuple[Budget, ...]


_OUT_OF_MEMORY = _Search(
    cause=Cause.OOM,
    what="memory did not suffice",
    died=is_oom,
    code="out_of_memory",
    charges=_ENGINE,
)
_LOST_NODE = _Search(
    cause=Cause.NODE_LOSS,
    what="nodes were lost",
    died=is_node_loss,
    code="poison",
    charges=_NODE,
)
_DEAD_ENGINE = _Search(
    cause=Cause.ENGINE_CRASH,
    what="engines died",
    died=is_crash,
    code="poison",
    charges=_ENGINE,
)


def _search(found: _Search) -> Iterator[Rule]:
    """What becomes of a suspect under which an engine died that could answer: halves, then the row."""
    lone = is_lone(found.died)
    yield Rule(
        cause=Cause.POISON,
        when=f"{found.what} under this one request",
        fits=lambda error, facts: lone(error, facts) and is_convicted(facts),
        effect=Effect(
            shard=OnShard.REFUSE,
            code=found.code,
            task=OnTask.DONE,
            charges=found.charges,
        ),
    )
    yield Rule(
        cause=found.cause,
        when=f"{found.what} under this suspect",
        fits=lambda error, facts: lone(error, facts) and facts.rows > 1,
        effect=Effect(shard=OnShard.SPLIT, task=OnTask.SPLIT, charges=found.charges),
    )
    yield Rule(
        cause=found.cause,
        when=f"{found.what} under this suspect of one request, to be tried again",
        fits=lone,
        effect=Effect(shard=OnShard.SUSPECT, charges=found.charges, wait=Wait(1.0, 30.0)),
    )


_PAUSED = Effect(task=OnTask.PAUSE)
_FULL = "Ray's object store and disk on a node were full"
_MAKE_ROOM = "free disk on that node, or start Ray there with a larger --object-store-memory"

# In the order of the causes, except: a cancelled job comes early, for nothing of it is retried whatever else
# happened; and memory and poison come before the deaths that they look like.
RULES: tuple[Rule, ...] = (
    Rule(
        cause=Cause.FENCED,
        when="the lease belongs to another attempt",
        fits=has_sign(Sign.FENCED),
        effect=Effect(shard=OnShard.DROP, task=OnTask.SUPERSEDED),
    ),
    Rule(
        cause=Cause.CANCEL,
        when="the job was cancelled",
        fits=lambda error, facts: error.sign is Sign.CANCELLED or facts.cancelled,
        effect=Effect(task=OnTask.CANCEL),  # a resume runs what is left
    ),
    Rule(
        cause=Cause.CANCEL,
        when="the job's time is over",
        fits=lambda error, facts: facts.expired,
        effect=Effect(task=OnTask.CANCEL),
    ),
    Rule(
        cause=Cause.USER_ERROR,
        when="the job cannot be done as it is",
        fits=has_sign(Sign.REFUSED),
        effect=Effect(task=OnTask.FAIL),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"taken back {INTERRUPTIONS} times without a new row",
        fits=lambda error, facts: is_spot(error, facts) and made_no_progress(facts) and facts.rows > 1,
        effect=Effect(
            shard=OnShard.HALVE,
            task=OnTask.SPLIT,
            charges=(Budget.INFRA,),
        ),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"taken back {INTERRUPTIONS} times without its one row",
        fits=lambda error, facts: is_spot(error, facts) and made_no_progress(facts),
        effect=Effect(charges=(Budget.INFRA,), wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.SPOT,
        when="the node was taken back",
        fits=is_spot,
        effect=Effect(wait=Wait(1.0, 1.0)),
    ),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice for the engine itself",
        fits=lambda error, facts: is_oom(error, facts) and is_of_the_engine(error, facts),
        effect=Effect(charges=(Budget.REPLICA, Budget.OOM), wait=Wait(1.0, 10.0)),
    ),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice, and a smaller engine may do",
        fits=lambda error, facts: is_oom(error, facts) and not facts.alone and facts.shrinks < SHRINK_STEPS,
        effect=Effect(charges=(Budget.OOM,), wait=Wait(1.0, 10.0)),
    ),
    *_search(_OUT_OF_MEMORY),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice in the smallest engine",
        fits=is_oom,
        effect=Effect(shard=OnShard.SUSPECT, charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    *_search(_LOST_NODE),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"nodes were lost {INTERRUPTIONS} times without a new row",
        fits=lambda error, facts: is_accused_by_nodes(error, facts) and facts.rows > 1,
        effect=Effect(shard=OnShard.SPLIT, task=OnTask.SPLIT, charges=_NODE),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"nodes were lost {INTERRUPTIONS} times without its one row",
        fits=is_accused_by_nodes,
        effect=Effect(shard=OnShard.SUSPECT, charges=_NODE, wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when="the node or the way to it was lost without notice",
        fits=is_node_loss,
        effect=Effect(charges=_NODE, wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="its node cannot import what the driver has",
        fits=lambda error, facts: error.sign is Sign.NOT_IMPORTED and facts.hopeful,
        effect=Effect(),  # no replica comes to that node again
        advice="give the nodes the driver's version of dray",
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="no node is left that can import what the driver has",
        fits=has_sign(Sign.NOT_IMPORTED),
        effect=Effect(task=OnTask.FAIL),
        advice="give the nodes the driver's version of dray, then resume the job",
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine did not start, and others do or still may",
        fits=is_of_its_place,
        effect=Effect(charges=(Budget.REPLICA,), wait=Wait(1.0, 30.0)),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine did not start",
        fits=has_sign(Sign.ENGINE_START),
        effect=Effect(charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    *_search(_DEAD_ENGINE),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine died before it was given a row",
        fits=lambda error, facts: is_crash(error, facts) and is_of_the_engine(error, facts),
        effect=Effect(charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine died",
        fits=is_crash,
        effect=Effect(shard=OnShard.SUSPECT, charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    Rule(
        cause=Cause.NO_ROOM,
        when=f"{_FULL} {NO_ROOM_TRIES} times in a row",
        fits=stays_full,
        effect=_PAUSED,
        advice=_MAKE_ROOM,
    ),
    Rule(
        cause=Cause.NO_ROOM,
        when=_FULL,
        fits=has_sign(Sign.NO_ROOM),
        effect=Effect(wait=Wait(5.0, 60.0)),
        advice=_MAKE_ROOM,
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when=f"the store was away for {STORE_PATIENCE / 60:.0f} minutes",
        fits=lambda error, facts: is_store_away(error, facts) and facts.store_seconds >= STORE_PATIENCE,
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when=f"the store answered, and took no row for {STORE_PATIENCE / 60:.0f} minutes",
        fits=lambda error, facts: is_store_away(error, facts) and facts.untaken_seconds >= STORE_PATIENCE,
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when="the store was away",
        fits=is_store_away,
        effect=Effect(wait=Wait(5.0, 60.0)),
    ),
    Rule(
        cause=Cause.STORE_FATAL,
        when="the store takes no writes until an operator acts",
        fits=has_sign(Sign.STORE_BROKEN),
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.UNKNOWN,
        when="the run was ended",
        fits=has_sign(Sign.ENDED),
        effect=Effect(task=OnTask.FAIL),
    ),
    Rule(
        cause=Cause.UNKNOWN,
        when="nothing that dray knows",
        fits=lambda error, facts: True,
        effect=Effect(charges=(Budget.UNKNOWN,), wait=Wait(5.0, 60.0)),
    ),
)
