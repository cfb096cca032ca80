"""The table of causes: what went wrong, and what follows for the request, the shard, the node and the job.

:func:`decide` is a pure function of an error and of what is known around it: of :data:`RULES`, the first that
fits wins. Who calls it carries the decision out, and counts the charges in the store, where they outlive it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from dray.requests.model import EXPIRED
from dray.spot.effects import (
    ALLOWANCES,
    Budget,
    Effect,
    OnJob,
    OnPrefect,
    OnReplica,
    OnRequest,
    OnShard,
    OnSpent,
    Wait,
)
from dray.spot.foreign import Sign
from dray.spot.signs import ErrorFacts, facts_of

NOTICE_SECONDS = 600.0
"""How long a notice explains losses, and how long before and after its deadline."""

INTERRUPTIONS = 5
"""Interruptions in a row without one new row, after which a shard is split and the loss charged."""

REQUEST_TRIES = 2
"""How often a request that fails in a living engine is tried again."""

STORE_PATIENCE = 1800.0
"""Seconds that a store may be away before the job is paused."""


class Cause(StrEnum):
    """Why something ended, as the store and reports name it."""

    FENCED = "FENCED"
    USER_ERROR = "USER_ERROR"
    SPOT = "SPOT"
    NODE_LOSS = "NODE_LOSS"
    ENGINE_CRASH = "ENGINE_CRASH"
    OOM = "OOM"
    GEN_TRANSIENT = "GEN_TRANSIENT"
    STORE_TRANSIENT = "STORE_TRANSIENT"
    STORE_FATAL = "STORE_FATAL"
    POISON = "POISON"
    CANCEL = "CANCEL"
    UNKNOWN = "UNKNOWN"


class Announced(Protocol):
    """A notice, from its source or from the store. Times are seconds since 1970."""

    @property
    def seen_at(self) -> float:
        """When it was seen."""

    @property
    def deadline(self) -> float | None:
        """When the node was to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known around an error. What is not known is left as it is here.

    Counts are of what came before this error. ``now`` and the notices' times are by one clock, the store's.
    """

    now: float = 0.0
    notices: Sequence[Announced] = ()  # for any node of the replica's
    draining: bool = False  # Ray lists one of them as draining
    preempted: bool = False  # Ray says that one was
    node_alive: bool | None = None
    oom: bool = False  # the death's context says so
    stuck: bool = False  # the watchdog ended a replica that brought nothing
    cancelled: bool = False
    expired: bool = False
    lapsed: bool = False  # the lease ran out by the holder's own clock; nobody else is known to have it
    lease_left: float = float("inf")  # seconds
    store_seconds: float = 0.0  # for which the store has been away
    rows: int = 1  # of the shard, without an outcome
    alone: bool = False  # no other shard had rows in the engine
    new_rows: int = 0  # with an outcome, by this attempt
    interruptions: int = 0  # of the shard in a row, without a new row
    crashes: int = 0  # of engines under the shard; the halves of a split shard begin with 1
    request_failures: int = 0  # of the one request
    tries: int = 0  # in a row that failed of the same cause
    spent: Mapping[Budget, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do. ``reason`` is for people: it quotes nothing.

    ``delay`` is seconds before the next try, to be slept at its start: Prefect ignores its own jitter.
    ``exclude_node`` says that the node is to have no more replicas while another can.
    """

    cause: Cause
    effect: Effect
    delay: float
    exclude_node: bool
    reason: str

    @property
    def retried(self) -> bool:
        """Whether Prefect runs the task again."""
        return self.effect.prefect is OnPrefect.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table: when it fits, in words and as a test, and what then follows."""

    cause: Cause
    when: str
    fits: Callable[[ErrorFacts, Facts], bool]
    effect: Effect


def in_force(notice: Announced, now: float) -> bool:
    """Whether a notice explains a loss at ``now``: one that is old and came to nothing does not."""
    if now - notice.seen_at <= NOTICE_SECONDS:
        return True
    return notice.deadline is not None and abs(now - notice.deadline) <= NOTICE_SECONDS


_LOSSES = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START, Sign.OOM, Sign.OTHER})
_DEATHS = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START})


def _sign(*signs: Sign) -> Callable[[ErrorFacts, Facts], bool]:
    return lambda error, facts: error.sign in signs


def _spot(error: ErrorFacts, facts: Facts) -> bool:
    """Any sign of one is enough, for any node of a group: what else failed with it is collateral.

    That is Ray Train's rule (failure_handling/default.py): a fault of its own comes back on the next try.
    """
    if error.sign not in _LOSSES:
        return False
    told = error.preempted or facts.preempted or facts.draining
    return told or any(in_force(notice, facts.now) for notice in facts.notices)


def _idle_spot(error: ErrorFacts, facts: Facts) -> bool:
    return _spot(error, facts) and facts.new_rows == 0 and facts.interruptions + 1 >= INTERRUPTIONS


def _oom(error: ErrorFacts, facts: Facts) -> bool:
    return error.sign is Sign.OOM or (error.sign in _DEATHS and (error.oom or facts.oom))


def _node_loss(error: ErrorFacts, facts: Facts) -> bool:
    """A process that went with its node, or nobody knows; one that stood still was ended by us."""
    if error.sign not in _DEATHS or facts.stuck or error.stuck:
        return False
    return facts.node_alive is False or (error.sign is Sign.LOST and facts.node_alive is None)


def _crash(error: ErrorFacts, facts: Facts) -> bool:
    return error.sign in _DEATHS and not _node_loss(error, facts)


def _proven(error: ErrorFacts, facts: Facts) -> bool:
    """A second crash under a shard that had the engine to itself: it is one of its rows."""
    return _crash(error, facts) and facts.alone and facts.crashes >= 1


def _store_away(error: ErrorFacts, facts: Facts) -> bool:
    return error.sign is Sign.STORE_AWAY or (error.sign is Sign.FENCED and facts.lapsed)


_ENGINE = (Budget.REPLICA, Budget.MODEL)
_PAUSED = Effect(job=OnJob.PAUSE, prefect=OnPrefect.PAUSE)

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
        effect=Effect(job=OnJob.CANCEL, prefect=OnPrefect.CANCEL),  # a resume runs what is left
    ),
    Rule(
        cause=Cause.CANCEL,
        when="the job's time is over",
        fits=lambda error, facts: facts.expired,
        effect=Effect(request=OnRequest.ERROR, code=EXPIRED, job=OnJob.EXPIRE, prefect=OnPrefect.CANCEL),
    ),
    Rule(
        cause=Cause.USER_ERROR,
        when="the request cannot be honoured",
        fits=_sign(Sign.REQUEST_REFUSED),
        effect=Effect(request=OnRequest.ERROR, shard=OnShard.GO_ON, prefect=OnPrefect.GO_ON),
    ),
    Rule(
        cause=Cause.USER_ERROR,
        when="the job cannot be done as it is",
        fits=_sign(Sign.REFUSED),
        effect=Effect(job=OnJob.FAIL, prefect=OnPrefect.FAIL),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"interrupted {INTERRUPTIONS} times without a new row",
        fits=lambda error, facts: _idle_spot(error, facts) and facts.rows > 1,
        effect=Effect(
            shard=OnShard.SPLIT,
            replica=OnReplica.LEAVE,
            prefect=OnPrefect.SPLIT,
            charges=(Budget.INFRA,),
        ),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when=f"interrupted {INTERRUPTIONS} times without its one row",
        fits=_idle_spot,
        effect=Effect(replica=OnReplica.LEAVE, charges=(Budget.INFRA,), wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.SPOT,
        when="the node was taken back",
        fits=_spot,
        effect=Effect(replica=OnReplica.LEAVE, wait=Wait(1.0, 1.0)),
    ),
    Rule(
        cause=Cause.OOM,
        when="memory did not suffice",
        fits=_oom,
        effect=Effect(replica=OnReplica.SHRINK, charges=(Budget.OOM,), wait=Wait(1.0, 10.0)),
    ),
    Rule(
        cause=Cause.NODE_LOSS,
        when="the node or the way to it was lost without notice",
        fits=_node_loss,
        effect=Effect(replica=OnReplica.REPLACE, charges=(Budget.INFRA, Budget.NODE), wait=Wait(5.0, 120.0)),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine did not start",
        fits=_sign(Sign.ENGINE_START),
        effect=Effect(replica=OnReplica.REPLACE, charges=_ENGINE, wait=Wait(1.0, 30.0)),
    ),
    Rule(
        cause=Cause.POISON,
        when="engines died under this one request",
        fits=lambda error, facts: _proven(error, facts) and facts.rows <= 1,
        effect=Effect(
            request=OnRequest.ERROR,
            code="poison",
            shard=OnShard.GO_ON,
            replica=OnReplica.REPLACE,
            prefect=OnPrefect.GO_ON,
            charges=(*_ENGINE, Budget.ERROR_RATE),
        ),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="engines died under this shard",
        fits=_proven,
        effect=Effect(
            shard=OnShard.SPLIT, replica=OnReplica.REPLACE, prefect=OnPrefect.SPLIT, charges=_ENGINE
        ),
    ),
    Rule(
        cause=Cause.ENGINE_CRASH,
        when="the engine died",
        fits=_crash,
        effect=Effect(
            shard=OnShard.SUSPECT, replica=OnReplica.REPLACE, charges=_ENGINE, wait=Wait(1.0, 30.0)
        ),
    ),
    Rule(
        cause=Cause.POISON,
        when=f"the request failed {REQUEST_TRIES + 1} times",
        fits=lambda error, facts: error.sign is Sign.GENERATION and facts.request_failures >= REQUEST_TRIES,
        effect=Effect(
            request=OnRequest.ERROR,
            code="poison",
            shard=OnShard.GO_ON,
            prefect=OnPrefect.GO_ON,
            charges=(Budget.ERROR_RATE,),
        ),
    ),
    Rule(
        cause=Cause.GEN_TRANSIENT,
        when="the request failed in a living engine",
        fits=_sign(Sign.GENERATION),
        effect=Effect(
            request=OnRequest.RETRY, shard=OnShard.GO_ON, prefect=OnPrefect.GO_ON, wait=Wait(0.1, 1.0)
        ),
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when=f"the store was away for {STORE_PATIENCE / 60:.0f} minutes",
        fits=lambda error, facts: _store_away(error, facts) and facts.store_seconds >= STORE_PATIENCE,
        effect=_PAUSED,
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when="the store was away for longer than the lease",
        fits=lambda error, facts: _store_away(error, facts) and (facts.lapsed or facts.lease_left <= 0),
        effect=Effect(wait=Wait(5.0, 60.0)),
    ),
    Rule(
        cause=Cause.STORE_TRANSIENT,
        when="the store is away",
        fits=_store_away,
        effect=Effect(shard=OnShard.HOLD, prefect=OnPrefect.GO_ON, wait=Wait(0.2, 5.0)),
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
        effect=Effect(job=OnJob.FAIL, prefect=OnPrefect.FAIL),
    ),
    Rule(
        cause=Cause.UNKNOWN,
        when="nothing that dray knows",
        fits=lambda error, facts: True,
        effect=Effect(charges=(Budget.UNKNOWN,), wait=Wait(5.0, 60.0)),
    ),
)


def decide(
    error: BaseException | ErrorFacts, facts: Facts | None = None, *, rng: random.Random | None = None
) -> Decision:
    """What ``error`` was, given ``facts``, and what to do. Always decides, and changes nothing."""
    known = facts or Facts()
    said = error if isinstance(error, ErrorFacts) else facts_of(error)
    rule = next(rule for rule in RULES if rule.fits(said, known))
    spent = [budget for budget in rule.effect.charges if is_spent(budget, known.spent)]
    over = [budget for budget in spent if ALLOWANCES[budget].then is OnSpent.FAIL]
    effect = rule.effect
    if over:
        effect = Effect(
            replica=effect.replica, job=OnJob.FAIL, prefect=OnPrefect.FAIL, charges=effect.charges
        )  # no verdict on a row: where engines always die, none is to blame
    if effect.request is OnRequest.ERROR and effect.code is None:
        effect = replace(effect, code=said.code or "invalid_request")
    delay = effect.wait.seconds(known.tries, rng or random.Random())  # noqa: S311  spreads load
    return Decision(
        cause=rule.cause,
        effect=effect,
        delay=max(0.0, min(delay, known.lease_left)) if effect.shard is OnShard.HOLD else delay,
        exclude_node=any(ALLOWANCES[budget].then is OnSpent.EXCLUDE for budget in spent),
        reason=_reason(rule, said, over),
    )


def is_spent(budget: Budget, spent: Mapping[Budget, int]) -> bool:
    """Whether one more charge is one too many, after ``spent``."""
    limit = ALLOWANCES[budget].limit
    return limit is not None and spent.get(budget, 0) >= limit


def _reason(rule: Rule, error: ErrorFacts, over: list[Budget]) -> str:
    told = f"{rule.cause}: {rule.when}" + (f" ({error.name})" if error.name else "")
    if not over:
        return told
    limits = ", ".join(f"{budget} {ALLOWANCES[budget].limit}" for budget in over)
    advice = "; ".join(ALLOWANCES[budget].advice for budget in over if ALLOWANCES[budget].advice)
    return f"{told}; no more are allowed ({limits})" + (f": {advice}" if advice else "")
