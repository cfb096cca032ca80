"""Hear of nodes that are being taken back, and have their replicas leave in time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dray.cluster.base import Node
from dray.driver.events import Event, NodeNoticed, Warned
from dray.driver.fleet import Fleet
from dray.driver.replicas.pool import ReplicaPool
from dray.notices.notice import Notice, NoticeKind
from dray.store import Store, StoredNotice

LEAD_SECONDS = 150.0
"""Before a node's end it is drained: the longest that a spot notice gives is AWS's two minutes.

Maintenance may be announced an hour ahead; the node works on until then.
"""


class InterruptionHandler:
    """Obeys the notices that a fleet hears; what the store is to record waits until the store answers."""

    def __init__(self, job_id: str, fleet: Fleet, pool: ReplicaPool, emit: Callable[[Event], None]) -> None:
        self._job_id = job_id
        self._fleet = fleet
        self._pool = pool
        self._emit = emit
        self._unrecorded: deque[StoredNotice] = deque()
        self._later: list[tuple[Node, float]] = []

    def look(self) -> None:
        """Drain the nodes that are to go; without the store."""
        due, self._later = self._later, []
        for node, deadline in due:
            self._obey(node, deadline)
        for node, notice in self._fleet.notices():
            if notice.kind is NoticeKind.REBALANCE:
                self._pool.cordon(node)
            elif notice.ends_node:
                self._obey(node, notice.deadline)
            self._emit(NodeNoticed(node=node.node_id, host=node.host, notice=notice))
            self._unrecorded.append(_stored(node, notice))
        for line in self._fleet.warnings():
            self._emit(Warned(line=line))

    def _obey(self, node: Node, deadline: float | None) -> None:
        if deadline is None or deadline - time.time() <= LEAD_SECONDS:
            self._pool.drain_node(node, deadline)
        else:
            self._pool.cordon(node)
            self._later.append((node, deadline))

    def record(self, store: Store) -> None:
        """Tell the store of what came.

        Raises:
            StoreError: the next call does what is left.
        """
        while self._unrecorded:
            store.record_notice(self._job_id, self._unrecorded[0])
            self._unrecorded.popleft()


def _stored(node: Node, notice: Notice) -> StoredNotice:
    return StoredNotice(
        node=node.node_id,
        source=notice.source,
        action=notice.action,
        deadline=notice.deadline,
        seen_at=notice.seen_at,
        kind=notice.kind,
        event=notice.id,
    )
