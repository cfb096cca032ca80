"""The table of causes: what went wrong, and what follows for the shard, its task and the job.

:func:`dray.failures.causes.decide` takes the first of :data:`RULES` that fits an error and its circumstances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dray.codes import ErrorCode
from dray.failures.effects import (
    SHRINK_STEPS,
    Budget,
    Effect,
    OnPrefect,
    OnShard,
    Wait,
)
from dray.failures.facts import Cause, Facts, in_force
from dray.failures.foreign import Sign
from dray.failures.signs import ErrorFacts

INTERRUPTIONS = 5
"""Interruptions in a row without one new row, after which a shard is cut in two and the loss charged."""

SAME_PLACE = 4
"""Crashes that refuse a suspect of one row though all were at one place: no other place took it meanwhile, or
each died before it was given the row. A suspect begins with 1."""

STORE_PATIENCE = 1800.0
"""Seconds that a store may be away, or take no rows, before the job is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table: when it fits, in words and as a test, and what then follows."""

    cause: Cause
    when: str
    fits: Callable[[ErrorFacts, Facts], bool]
    effect: Effect


_LOSSES = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START, Sign.OOM, Sign.OTHER})
_DEATHS = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START})
_Fits = Callable[[ErrorFacts, Facts], bool]


def _sign(*signs: Sign) -> _Fits:
    return lambda error, facts: error.sign in signs


def _spot(error: ErrorFacts, facts: Facts) -> bool:
    """Any sign of one is enough, for any node of a group: what else failed with it is collateral.

    That is Ray Train's rule (failure_handling/default.py): a fault of its own comes back on the next try.
    """
    if error.sign not in _LOSSES:
        return False
    told = error.preempted or facts.preempted or facts.draining
    return told or any(in_force(notice, facts.now) for notice in facts.notices)


def _idle(facts: Facts) -> bool:
    """Interrupted once too often without one new row."""
    return facts.new_rows == 0 and facts.interruptions + 1 >= INTERRUPTIONS


def _oom(error: ErrorFacts, facts: Facts) -> bool:
    return error.sign is Sign.OOM or (error.sign in _DEATHS and (error.oom or facts.oom))


def _node_loss(error: ErrorFacts, facts: Facts) -> bool:
    """A process that went with its node, as far as is known; one that stood still was ended by dray."""
    if error.sign not in _DEATHS or error.stuck:
        return False
    return facts.node_alive is False or (error.sign is Sign.LOST and facts.node_alive is None)


def _crash(error: ErrorFacts, facts: Facts) -> bool:
    return error.sign in _DEATHS and not _node_loss(error, facts)


def _of_the_engine(error: ErrorFacts, facts: Facts) -> bool:
    """Whether no row can be at fault: the engine never started, or died before it was given one."""
    return error.sign is Sign.ENGINE_START or (facts.alone and not facts.proven)


def _lone(died: _Fits) -> _Fits:
    """An engine that could answer died under rows that it had to itself: one of them is at fault."""
    return lambda error, facts: (
        died(error, facts) and facts.alone and facts.proven and not _of_the_engine(error, facts)
    )


def _convicted(facts: Facts) -> bool:
    """Down to one row, for the second time alone, and at a second place where there is one."""
    return facts.rows <= 1 and facts.crashes >= 2 and (facts.elsewhere or facts.crashes >= SAME_PLACE)


def _store_away(error: ErrorFacts, facts: Facts) -> bool:
    return error.sign is Sign.STORE_AWAY or (error.sign is Sign.FENCED and facts.lapsed)


def _accused_by_nodes(error: ErrorFacts, facts: Facts) -> bool:
    return _node_loss(error, facts) and _idle(facts) and not facts.alone


_ENGINE = (Budget.REPLICA, Budget.MODEL)
_NODE = (Budget.INFRA, Budget.NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """One way in which a row ends what runs it, and how its search is told and charged."""

    cause: Cause
    what: str
    died: _Fits
    code: ErrorCode
    charges: tuple[Budget, ...]


_OUT_OF_MEMORY = _Search(
    cause=Cause.OOM,
    what="memory did not suffice",
    died=_oom,
    code="out_of_memory",
    charges=_ENGINE,
)
_LOST_NODE = _Search(
    cause=Cause.NODE_LOSS,
    what="nodes were lost",
    died=_node_loss,
    code="poison",
    charges=_NODE,
)
_DEAD_ENGINE = _Search(
    cause=Cause.ENGINE_CRASH,
    what="engines died",
    died=_crash,
    code="poison",
    charges=_ENGINE,
)


def _search(found: _Search) -> Iterator[Rule]:
    """What becomes of a suspect under which an engine died that could answer: halves, then the row."""
    lone = _lone(found.died)
    yield Rule(
        cause=Cause.POISON,
        when=f"{found.what} under this one request",
        fits=lambda error, facts: lone(error, facts) and _convicted(facts),
        effect=Effect(
            shard=OnShard.REFUSE,
            code=found.code,
            prefect=OnPrefect.DONE,
            charges=found.charges,
        ),
    )
    yield Rule(
        cause=found.cause,
        when=f"{found.what} under this suspect",
        fits=lambda error, facts: lone(error, facts) and facts.rows > 1,
        effect=Effect(shard=OnShard.SPLIT, prefect=OnPrefect.SPLIT, charges=found.charges),
    )
    yield Rule(
        cause=found.cause,
        when=f"{found.what} under this suspect of one request, to be tried again",
        fits=lone,
        effect=Effect(shard=OnShard.SUSPECT, charges=found.charges, wait=Wait(1.0, 30.0)),
    )


_PAUSED = Effect(prefect=OnPrefect.PAUSE)

# In the order of the causes, except: a cancelled job comes early, for nothing of it is retried whatever else
# happened; and memory and poison come before the deaths that they look like.
RULES: tuple[Rule, ...] = (
    Rule(
        cause=Cause.FENCED,
        when="the lease belongs to another attempt",
        fits=lambda error, facts: error.sign is Sign.FENCED and not facts.lapsed,
        effect=Effect(shard=OnShard.DROP, prefect=OnPrefect.SUPERSEDED),
    ),
    Rule(
        cause=Cause.CANCEL,
        when="the job was cancelled",
        fits=lambda error, facts: error.sign is Sign.CANCELLED or facts.cancelled,
        effect=Effect(prefect=OnPrefect.CANCEL),  # a resume runs what is left
    ),
    Rule(
        cause=Cause.CANCEL,
        when="the job's time is over",
        fits=lambda error, facts: facts.expired,
        effect=Effect(prefect=OnPrefect.CANCEL),
    ),
    Rule(
        cause=Cause.USER_ERROR,
        when="the job cannot be done as it is",
        fits=_sign(Sign.REFUSED),
        effect=Effect(prefect=OnPrefect.FAIL),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"taken back {INTERRUPTIONS} times without a new row",
        fits=lambda error, facts: _spot(error, facts) and _idle(facts) and facts.rows > 1,
        effect=Effect(
            shard=OnShard.HALVE,
            prefect=OnPrefect.SPLIT,
            charges=(Budget.INFRA,),
        ),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"taken back {INTERRUPTIONS} times without its one row",
        fits=lambda error, facts: _spot(error, facts) and _idle(facts),
        effect=Effect(charges=(Budget.INFRA,), wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.SPOT,
        when="the node was taken back",
        fits=_spot,
        effect=Effect(wait=Wait(1.0, 1.0)),
    ),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice for the engine itself",
        fits=lambda error, facts: _oom(error, facts) and _of_the_engine(error, facts),
        effect=Effect(charges=(Budget.REPLICA, Budget.OOM), wait=Wait(1.0, 10.0)),
    ),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice, and a smaller engine may do",
        fits=lambda error, facts: _oom(error, facts) and not facts.alone and facts.shrinks < SHRINK_STEPS,
        effect=Effect(charges=(Budget.OOM,), wait=Wait(1.0, 10.0)),
    ),
    *_search(_OUT_OF_MEMORY),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice in the smallest engine",
        fits=_oom,
        effect=Effect(shard=OnShard.SUSPECT, charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    *_search(_LOST_NODE),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"nodes were lost {INTERRUPTIONS} times without a new row",
        fits=lambda error, facts: _accused_by_nodes(error, facts) and facts.rows > 1,
        effect=Effect(shard=OnShard.SPLIT, prefect=OnPrefect.SPLIT, charges=_NODE),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"nodes were lost {INTERRUPTIONS} times without its one row",
        fits=_accused_by_nodes,
        effect=Effect(shard=OnShard.SUSPECT, charges=_NODE, wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when="the node or the way to it was lost without notice",
        fits=_node_loss,
        effect=Effect(charges=_NODE, wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine did not start",
        fits=_sign(Sign.ENGINE_START),
        effect=Effect(charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    *_search(_DEAD_ENGINE),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine died before it was given a row",
        fits=lambda error, facts: _crash(error, facts) and _of_the_engine(error, facts),
        effect=Effect(charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine died",
        fits=_crash,
        effect=Effect(shard=OnShard.SUSPECT, charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when=f"the store was away for {STORE_PATIENCE / 60:.0f} minutes",
        fits=lambda error, facts: _store_away(error, facts) and facts.store_seconds >= STORE_PATIENCE,
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when=f"the store answered, and took no row for {STORE_PATIENCE / 60:.0f} minutes",
        fits=lambda error, facts: _store_away(error, facts) and facts.untaken_seconds >= STORE_PATIENCE,
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when="the store was away",
        fits=_store_away,
        effect=Effect(wait=Wait(5.0, 60.0)),
    ),
    Rule(
        cause=Cause.STORE_FATAL,
        when="the store takes no writes until somebody acts",
        fits=_sign(Sign.STORE_BROKEN),
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.UNKNOWN,
        when="the run was ended",
        fits=_sign(Sign.ENDED),
        effect=Effect(prefect=OnPrefect.FAIL),
    ),
    Rule(
        cause=Cause.UNKNOWN,
        when="nothing that dray knows",
        fits=lambda error, facts: True,
        effect=Effect(charges=(Budget.UNKNOWN,), wait=Wait(5.0, 60.0)),
    ),
)
