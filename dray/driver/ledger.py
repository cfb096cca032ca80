"""What each node does with its time, from what the driver tells, and into the store now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from dray.account import Life, NodeBill, Span, account_of, spans_of
from dray.account.spans import MICRO
from dray.cluster.base import ClusterInfo, Node
from dray.driver.events import (
    Event,
    NodeLeft,
    NodeLost,
    ReplicaChanged,
    ReplicaLooked,
    ReplicaLost,
    ReplicaReady,
)
from dray.driver.replicas.handle import ReplicaStart
from dray.engine.replica import ReplicaStatus
from dray.job.open_job import OpenJob
from dray.job.pricing import price_of
from dray.places import first_of, is_successor
from dray.store import ReplicaState, Store

_SECONDS_A_REPLICA = 0.3
"""Between two writes for each replica: one of 1,000 replicas took 0.4 s on PostgreSQL."""

_AWAY_SECONDS = 120.0
"""Ray takes up to a minute to call a node dead: one that left so soon after a loss went with that loss."""


class Ledger:
    """Hears what becomes of replicas and nodes. A driver that is killed loses the last seconds of it.

    All of its moments are by the job's clock, which nothing sets: money goes by the time that passed.
    """

    def __init__(self, job: OpenJob, info: ClusterInfo) -> None:
        self._now = job.clock
        self._job = job
        self._lives: dict[str, Life] = {}
        self._lost: dict[str, float] = {}  # nodes that a loss showed to be gone, or to be leaving
        self._left: dict[str, float] = {}  # nodes that are in the cluster no more
        self._began = min(job.started, info.ready + self._now.ahead() - info.seconds)
        self._nodes = {node.node_id: node for node in info.nodes}
        # Since when each node counts; one that others may use, from the job's first replica on it.
        self._seen = {} if info.shared else dict.fromkeys(self._nodes, self._began)
        self._given = job.settings.request.price
        self._kept: float | None = None
        self._used: set[str] = set()  # first replicas of lanes that have been on a node

    def hear(self, event: Event) -> None:
        """Note what it says of a replica or a node."""
        if isinstance(event, ReplicaChanged):
            self._note_change(event)
        elif isinstance(event, ReplicaReady):
            self._note_ready(event.start)
        elif isinstance(event, ReplicaLooked):
            self._note_status(event.status)
        elif isinstance(event, ReplicaLost) and event.name in self._lives:
            life = self._lives[event.name]
            life.lost = True
            if (node := life.node or event.node) is not None:
                self._come(life, node, self._now())
            life.ended = life.ended or self._now()
        elif isinstance(event, NodeLost):
            self._lost[event.node] = self._now()
        elif isinstance(event, NodeLeft):
            self._left[event.node] = self._now()

    def keep(self, store: Store, *, last: bool = False) -> None:
        """Put what the nodes did so far into the store, if it is time to, or this is the ``last`` time.

        Raises:
            StoreError: it is away.
            FencedError: the job has another driver.
        """
        now = self._now()
        due = self._kept is None or now - self._kept >= _SECONDS_A_REPLICA * len(self._lives)
        if not any(life.node for life in self._lives.values()) or not (due or last):
            return
        for name, rows in store.committed_by_replica(self._job.job_id).items():
            if name in self._lives:
                self._lives[name].committed = rows
        store.put_spans(self._job.lease, self.spans(now))
        self._kept = now

    def spans(self, now: float) -> list[Span]:
        """What the nodes did up to ``now``."""
        lives = [part for life in self._lives.values() for part in self._parts(life)]
        by_node: defaultdict[str, list[Life]] = defaultdict(list)
        for life in lives:
            if life.node is not None:
                by_node[life.node].append(life)
        facts = {node: self._facts(node, here) for node, here in by_node.items()}
        return spans_of(lives, facts, epoch=self._job.lease.epoch, now=now)

    def _parts(self, life: Life) -> list[Life]:
        """A life on each of its nodes: what a replica on several does, all of them do."""
        return [life] + [
            replace(life, node=node, host=known.host if (known := self._nodes.get(node)) else "", others=())
            for node in life.others
        ]

    def dollars(self) -> float:
        """What this run's nodes cost so far, those without a price left out."""
        found = [span for span in self.spans(self._now()) if span.price is not None]
        return account_of(found).dollars or 0.0

    def hourly(self, nodes: Collection[str], *, spot: bool | None = None) -> float:
        """Dollars that these nodes cost an hour, those without a price left out.

        With ``spot``, what their types cost as spot, or on demand.
        """
        known = [self._nodes.get(node) for node in nodes]
        if spot is not None:
            known = [node and replace(node, spot=spot) for node in known]
        return sum(price_of(node, self._given) or 0 for node in known) / MICRO

    def unpriced(self, nodes: Collection[str]) -> set[str]:
        """Which of these nodes have no price."""
        return {node for node in nodes if price_of(self._nodes.get(node), self._given) is None}

    @property
    def priced(self) -> bool:
        """Whether any node of the cluster has a price."""
        return any(price_of(node, self._given) is not None for node in (*self._nodes.values(), None))

    def meet(self, nodes: Sequence[Node]) -> None:
        """These nodes are in the cluster now: some may have joined since the run began.

        Each counts once a replica is placed on it: until then it may have worked for others.
        """
        self._nodes |= {node.node_id: node for node in nodes}

    def _facts(self, node: str, lives: Collection[Life]) -> NodeBill:
        """A node that was there at the beginning counts from then on, others from the first replica on them.

        Not from when a replica was asked for: it may have waited for hours until there was a machine.
        """
        known = self._nodes.get(node)
        gone = self._end(node, lives)
        return NodeBill(
            began=self._seen.get(node, min(life.asked for life in lives)),
            ended=None if gone is None or max(life.came for life in lives) > gone else gone,
            gpus=known.gpus if known is not None else 0.0,
            price=price_of(known, self._given),
        )

    def _end(self, node: str, lives: Collection[Life]) -> float | None:
        """When a node left; None where it is still there.

        The loss before that gives the moment more exactly. A loss alone proves nothing: an engine that
        crashes while a notice is in force counts as lost with its node, which may work on for days.
        """
        left, lost = self._left.get(node), self._lost.get(node)
        if left is None or lost is None or not 0 <= left - lost <= _AWAY_SECONDS:
            return left
        ends = [left if life.ended is None else life.ended for life in lives]
        return min(left, max(lost, *ends))

    def _life(self, name: str, began: float) -> Life:
        """What is known of a replica. It is a successor if one before it in its lane had a node.

        It ``began`` a moment ago by the machine's clock, which may have been set since the ledger's began.
        """
        if name not in self._lives:
            asked = began + self._now.ahead()
            successor = is_successor(name) and first_of(name) in self._used
            self._lives[name] = Life(name=name, asked=asked, successor=successor)
        return self._lives[name]

    def _come(self, life: Life, node: str, at: float) -> None:
        """It was seen on this node at this moment, or before."""
        life.node = node
        if life.placed is None:
            life.placed = at
            self._used.add(first_of(life.name))
        self._seen.setdefault(node, at)

    def _note_change(self, event: ReplicaChanged) -> None:
        life = self._life(event.name, event.began)
        at = life.asked + event.at - event.began
        life.gpus = life.gpus or event.gpus
        life.host = event.host or life.host
        life.others = event.others or life.others
        if event.node is not None:
            self._come(life, event.node, at)
        for node in event.others:
            self._seen.setdefault(node, at)
        if event.state is ReplicaState.LEAVING:
            life.leaving = life.leaving or at
        elif event.state is ReplicaState.GONE:
            life.ended = life.ended or at

    def _note_ready(self, start: ReplicaStart) -> None:
        life = self._life(start.name, start.began)
        ahead, weights = life.asked - start.began, start.info.weights
        life.ready = start.ready + ahead
        life.process = min(start.process + ahead, life.ready)  # its node's clock may be another one
        life.weights = None if weights is None else (weights[0] + ahead, weights[1] + ahead)

    def _note_status(self, status: ReplicaStatus) -> None:
        life, stats = self._lives.get(status.name), status.stats
        if life is None:
            return
        life.looked = self._now()
        life.busy, life.finished = stats.busy_seconds, stats.finished
        life.row_seconds, life.answered_seconds = stats.row_seconds, stats.answered_seconds
        life.running = status.running
