"""What a pool of replicas tells the store, and learns from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dray.cluster.member import ReplicaHandle
from dray.cluster.pool import Loss
from dray.errors import DrayError, JobFailedError, StoreError
from dray.failures.causes import Facts, decide
from dray.failures.effects import SHRINK_STEPS, OnPrefect
from dray.failures.facts import Cause
from dray.failures.signs import facts_of
from dray.job.opening import OpenJob, reopen
from dray.places import lane_of, place_of, split_place
from dray.shard import budgets
from dray.shard.ending import loss_event
from dray.store import ReplicaRow, ReplicaState

_NODE_WENT = frozenset({Cause.SPOT, Cause.NODE_LOSS})


@dataclass(frozen=True)
class LostNode:
    """A node that went, with the replica that was on it. ``node`` is Ray's id of it."""

    node: str
    replica: str
    cause: str


class JobLedger:
    """The ledger of one job's pool. ``failure`` says why the job cannot go on, once it cannot."""

    def __init__(self, job: OpenJob) -> None:
        self._job = job
        self._told: deque[str] = deque()
        self._lost: deque[LostNode] = deque()
        self._gone: set[str] = set()
        self.failure: DrayError | None = None

    def take_told(self) -> list[str]:
        """What there is to say since the last time."""
        return [self._told.popleft() for _ in range(len(self._told))]

    def take_lost(self) -> list[LostNode]:
        """The nodes that went since the last time, each once."""
        return [self._lost.popleft() for _ in range(len(self._lost))]

    def publish(self, members: Sequence[ReplicaHandle]) -> None:
        """Shards find their replicas in the store."""
        rows = [
            ReplicaRow(
                name=member.name,
                lane=member.lane,
                state=ReplicaState(member.state),
                slots=member.slots,
                node=member.node,
                host=member.host,
                max_num_seqs=member.max_num_seqs,
                note=member.note,
            )
            for member in members
        ]
        with reopen(self._job) as store:
            store.put_replicas(self._job.lease, rows)

    def lost(self, loss: Loss) -> None:
        """Charge a loss, if no shard has: an idle replica has none, and one that starts has none yet."""
        job_id = self._job.job_id
        event = loss_event(loss.name, loss.node, loss.facts)
        place = place_of(loss.node, loss.name)
        try:
            with reopen(self._job) as store:
                known = store.charged_cause(job_id, event)
                if known is not None:  # a shard was there, and knows more of it
                    self._told.append(f"{lane_of(loss.name)} lost: {known}")
                    self._note_node(loss, known)
                    return
                notices = [notice for notice in store.notices(job_id) if notice.node == loss.node]
                facts = Facts(
                    now=store.now(),
                    notices=notices,
                    draining=loss.facts.draining,
                    preempted=loss.facts.preempted,
                    node_alive=loss.facts.alive,
                    oom=loss.facts.oom,
                    shrinks=budgets.shrinks(store, job_id, event=event),
                    spent=budgets.spent(store, job_id, place, event=event),
                )
                decision = decide(facts_of(loss.error), facts)
                store.charge(job_id, budgets.charges(decision, place, event=event))
        except StoreError as error:
            self._told.append(f"{lane_of(loss.name)}: its loss is not charged: {type(error).__name__}")
            return
        self._told.append(f"{lane_of(loss.name)} lost: {decision.reason}")
        self._note_node(loss, decision.cause)
        if decision.effect.prefect is OnPrefect.FAIL:
            self.failure = JobFailedError(decision.reason)

    def _note_node(self, loss: Loss, cause: str) -> None:
        if cause in _NODE_WENT and loss.node is not None and loss.node not in self._gone:
            self._gone.add(loss.node)
            self._lost.append(LostNode(loss.node, lane_of(loss.name), str(cause)))

    def excluded(self, lane: str) -> Collection[str]:
        """Nodes whose budgets are spent, as far as a replica of this lane is concerned."""
        with reopen(self._job) as store:
            spent = [split_place(scope) for scope in budgets.excluded(store, self._job.job_id)]
        return {node for node, which in spent if which in ("", lane)}

    def shrink_steps(self) -> int:
        """How often memory did not suffice, as far as a smaller engine may help."""
        with reopen(self._job) as store:
            return min(SHRINK_STEPS, budgets.shrinks(store, self._job.job_id))
