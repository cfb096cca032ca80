"""Judge each loss of a replica: find out what died, decide by the table of causes, charge the budgets."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from dray.cluster.losses import SETTLE_SECONDS, NodeFacts
from dray.driver.events import Event, NodeLost, ReplicaLost
from dray.driver.pool import Loss
from dray.errors import DrayError, JobFailedError
from dray.failures.causes import Facts, decide
from dray.failures.effects import SHRINK_STEPS, OnPrefect
from dray.failures.facts import Cause
from dray.failures.signs import facts_of
from dray.places import lane_of, place_of, split_place
from dray.shard import budgets
from dray.shard.ending import loss_event
from dray.store import Store

_NODE_WENT = frozenset({Cause.SPOT, Cause.NODE_LOSS})


@dataclass(frozen=True)
class _Open:
    """A loss that is not judged yet. The cluster may need some seconds to say how a process died."""

    loss: Loss
    since: float = field(default_factory=time.monotonic)

    @property
    def lane(self) -> str:
        return lane_of(self.loss.replica.name)

    def facts(self) -> NodeFacts | None:
        """What is known; None where waiting may still tell more."""
        facts = self.loss.replica.process.fate()
        waited = time.monotonic() - self.since
        return facts if facts.alive is not None or waited > SETTLE_SECONDS else None


class Losses:
    """The losses of one job's replicas. ``failure`` says why the job cannot go on, once it cannot."""

    def __init__(self, job_id: str, emit: Callable[[Event], None]) -> None:
        self._job_id = job_id
        self._emit = emit
        self._open: list[_Open] = []
        self._gone: set[str] = set()
        self.failure: DrayError | None = None

    def add(self, losses: Collection[Loss]) -> None:
        """These died."""
        self._open += [_Open(loss) for loss in losses]

    def judge(self, store: Store) -> None:
        """Judge those of which enough is known.

        Raises:
            StoreError: the next call judges those that are left.
        """
        for one in list(self._open):
            facts = one.facts()
            if facts is not None:
                self._judge(store, one.loss, facts)
                self._open.remove(one)

    def _judge(self, store: Store, loss: Loss, node_facts: NodeFacts) -> None:
        """Charge a loss, if no shard has: an idle replica has none, and one that starts has none yet."""
        name, node = loss.replica.name, loss.replica.node or loss.replica.process.node()
        event = loss_event(name, node, node_facts)
        known = store.charged_cause(self._job_id, event)
        if known is not None:  # a shard was there, and knows more of it
            self._tell(name, node, known, known)
            return
        place = place_of(node, name)
        notices = [notice for notice in store.notices(self._job_id) if notice.node == node]
        facts = Facts(
            now=store.now(),
            notices=notices,
            draining=node_facts.draining,
            preempted=node_facts.preempted,
            node_alive=node_facts.alive,
            oom=node_facts.oom,
            shrinks=budgets.shrinks(store, self._job_id, event=event),
            spent=budgets.spent(store, self._job_id, place, event=event),
        )
        decision = decide(facts_of(loss.error), facts)
        store.charge(self._job_id, budgets.charges(decision, place, event=event))
        self._tell(name, node, decision.cause, decision.reason)
        if decision.effect.prefect is OnPrefect.FAIL:
            self.failure = JobFailedError(decision.reason)

    def _tell(self, name: str, node: str | None, cause: str, reason: str) -> None:
        self._emit(ReplicaLost(name=name, node=node, cause=cause, reason=reason))
        if cause in _NODE_WENT and node is not None and node not in self._gone:
            self._gone.add(node)
            self._emit(NodeLost(node=node, replica=lane_of(name), cause=str(cause)))

    def undecided(self, lane: str) -> bool:
        """Whether a lack of memory of this lane is not judged yet."""
        return any(one.lane == lane and getattr(one.loss.error, "oom", False) for one in self._open)


class StoreBudgets:
    """What earlier losses of the job came to, in its store. Calls may raise StoreError."""

    def __init__(self, store: Store, job_id: str, losses: Losses) -> None:
        self._store = store
        self._job_id = job_id
        self._losses = losses

    def excluded(self, lane: str) -> Collection[str]:
        """Nodes whose budgets are spent, as far as a replica of this lane is concerned."""
        spent = [split_place(scope) for scope in budgets.excluded(self._store, self._job_id)]
        return {node for node, which in spent if which in ("", lane)}

    def shrink_steps(self) -> int:
        """How often memory did not suffice, as far as a smaller engine may help."""
        return min(SHRINK_STEPS, budgets.shrinks(self._store, self._job_id))

    def undecided(self, lane: str) -> bool:
        """Whether a lack of memory of this lane is not judged yet."""
        return self._losses.undecided(lane)
