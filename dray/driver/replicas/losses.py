"""Judge each loss of a replica: find out what died, decide by the table of causes, charge the budgets.

The driver alone does so. Shard tasks that lost the replica say what they saw of it, and wait for the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from dray.cluster.losses import NodeFacts
from dray.driver.events import Event, NodeLost, ReplicaLost
from dray.driver.replicas.handle import Loss
from dray.errors import DrayError, JobFailedError
from dray.failures.causes import decide
from dray.failures.effects import SHRINK_STEPS, OnTask
from dray.failures.facts import Cause, Facts
from dray.failures.foreign import Sign
from dray.failures.signs import ErrorFacts, facts_of
from dray.places import lane_of, place_of, split_place
from dray.shard import budgets
from dray.store import Evidence, JobLease, Store, Verdict, Witnesses
from dray.triggers import Point, reach

SETTLE_SECONDS = 4.0
"""For Ray to say how an actor died: a live daemon reports it within a second."""

EVIDENCE_SECONDS = 2.0
"""For shard tasks to say what they saw: their calls end as the replica dies, as the driver's own does."""

STEP_SECONDS = 1.0
"""For judging in one step of the driver: between two steps it hears of notices and asks how replicas are."""

_NODE_WENT = frozenset({Cause.SPOT, Cause.NODE_LOSS})
_SIGNS = (Sign.OOM, Sign.ENGINE_DEAD, Sign.LOST)  # the most telling first
_ROWS = 2  # of a shard, which counts its own: the driver judges engines, and refuses no row


@dataclass(kw_only=True)
class _UnjudgedLoss:
    """A replica that died, and has no verdict yet: why it died may be known only some seconds later.

    Ray says what became of its process. ``witnesses`` are the shard tasks that used it, with what they saw.
    """

    loss: Loss
    since: float = field(default_factory=time.monotonic)
    witnesses: Witnesses = field(default_factory=Witnesses)

    @property
    def lane(self) -> str:
        return lane_of(self.loss.replica.name)

    def facts(self, store: Store, job_id: str) -> NodeFacts | None:
        """What is known; None where waiting may still tell more."""
        facts = self.loss.replica.process.fate()
        self.witnesses = store.witnesses(job_id, self.loss.replica.name)
        waited = time.monotonic() - self.since
        unheard = self.witnesses.silent and waited <= EVIDENCE_SECONDS
        unsettled = facts.alive is None and waited <= SETTLE_SECONDS
        return None if unheard or unsettled else facts

    @property
    def may_lack_memory(self) -> bool:
        """Whether the verdict may be a lack of memory, which the engine tells only those that fed it."""
        seen = self.witnesses
        told = getattr(self.loss.error, "oom", False) or any(one.oom for one in seen.said)
        return bool(told or seen.silent)


class Losses:
    """The losses of one job's replicas. ``failure`` says why the job cannot go on, once it cannot."""

    def __init__(self, lease: JobLease, emit: Callable[[Event], None]) -> None:
        self._lease = lease
        self._emit = emit
        self._open: list[_UnjudgedLoss] = []
        self._gone: set[str] = set()
        self.failure: DrayError | None = None

    def add(self, losses: Collection[Loss]) -> None:
        """These died."""
        self._open += [_UnjudgedLoss(loss=loss) for loss in losses]

    def judge(self, store: Store) -> None:
        """Judge those of which enough is known. The next call judges those that time does not suffice for.

        Raises:
            StoreError: the next call judges those that are left.
        """
        until = time.monotonic() + STEP_SECONDS
        for one in list(self._open):
            facts = one.facts(store, self._lease.job_id)
            if facts is not None:
                self._judge(store, one.loss, facts, one.witnesses.said)
                self._open.remove(one)
            if time.monotonic() > until:
                break

    def _judge(self, store: Store, loss: Loss, node_facts: NodeFacts, said: Collection[Evidence]) -> None:
        """Write the verdict and charge it. A replica that idles has no witness, nor has one that starts."""
        job_id = self._lease.job_id
        name = loss.replica.name
        node = node_facts.node or loss.replica.node or loss.replica.process.node()
        event, place = _event(name, node, node_facts), place_of(node, name)
        alone = [one for one in said if one.alone]
        facts = Facts(
            now=store.now() - (time.monotonic() - loss.at),
            notices=[one for one in store.notices(job_id) if one.node in {node, *loss.replica.nodes}],
            draining=node_facts.draining,
            preempted=node_facts.preempted,
            node_alive=node_facts.alive,
            oom=node_facts.oom,
            rows=_ROWS,
            hopeful=loss.hopeful,
            alone=bool(alone),
            proven=any(one.proven for one in alone),
            shrinks=budgets.shrinks(store, job_id, event=event),
            spent=budgets.spent(store, job_id, place, event=event),
        )
        decision = decide(_told(facts_of(loss.error), said), facts)
        verdict = Verdict(cause=decision.cause, event=event)
        reach(Point.VERDICT_BEFORE)
        store.judge(self._lease, name, verdict, budgets.charges(decision, place, event=event))
        reach(Point.VERDICT_AFTER)
        self._tell(name, node, decision.cause, decision.reason)
        if decision.effect.task is OnTask.FAIL:
            self.failure = JobFailedError(decision.reason)

    def _tell(self, name: str, node: str | None, cause: str, reason: str) -> None:
        self._emit(ReplicaLost(name=name, node=node, cause=cause, reason=reason))
        if cause in _NODE_WENT and node is not None and node not in self._gone:
            self._gone.add(node)
            self._emit(NodeLost(node=node, replica=lane_of(name), cause=str(cause)))

    def undecided(self, lane: str) -> bool:
        """Whether what may be a lack of memory of this lane is not judged yet."""
        return any(one.lane == lane and one.may_lack_memory for one in self._open)


def _event(replica: str, node: str | None, facts: NodeFacts) -> str:
    """The name of a loss: a node that went takes all of its replicas along, and is charged once."""
    return f"node {node}" if node is not None and facts.alive is False else f"replica {replica}"


def _told(own: ErrorFacts, said: Collection[Evidence]) -> ErrorFacts:
    """The driver's own error, and what those add to it who fed the engine: they get its last report."""
    signs = {own.sign, *(Sign(one.sign) for one in said)}
    return replace(
        own,
        sign=next((sign for sign in _SIGNS if sign in signs), own.sign),
        oom=own.oom or any(one.oom for one in said),
        preempted=own.preempted or any(one.preempted for one in said),
        stuck=own.stuck or any(one.stuck for one in said),
    )


class StoreBudgets:
    """What earlier losses of the job came to, in its store. Calls may raise StoreError.

    It asks the store once, when a first replica is due: one for each step of the driver is enough.
    """

    def __init__(self, store: Store, job_id: str, losses: Losses) -> None:
        self._store = store
        self._job_id = job_id
        self._losses = losses

    @cached_property
    def _excluded(self) -> Collection[tuple[str, str]]:
        return [split_place(scope) for scope in budgets.excluded(self._store, self._job_id)]

    @cached_property
    def _shrinks(self) -> int:
        return budgets.shrinks(self._store, self._job_id)

    def excluded(self, lane: str) -> Collection[str]:
        """Nodes whose budgets are spent, as far as a replica of this lane is concerned."""
        return {node for node, which in self._excluded if which in ("", lane)}

    def shrink_steps(self) -> int:
        """How often memory did not suffice, as far as a smaller engine may help."""
        return min(SHRINK_STEPS, self._shrinks)

    def undecided(self, lane: str) -> bool:
        """Whether a lack of memory of this lane is not judged yet."""
        return self._losses.undecided(lane)
