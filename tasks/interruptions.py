"""Hear of nodes that are being taken back, and have their replicas leave in time."""

from __future__ import annotations

import time
from collections import deque

from prefect import get_run_logger

from dray.cluster import Node, ReplicaPool
from dray.cluster.watching import NodeWatchers
from dray.job.opening import OpenJob, reopen
from dray.notices import Kind, Notice
from dray.store import Notice as KeptNotice

LEAD_SECONDS = 150.0
"""Before a node's end it is drained: the longest that a spot notice gives is AWS's two minutes.

Maintenance may be announced an hour ahead; the node works on until then.
"""


class InterruptionHandler:
    """Asks the nodes' watchers, and obeys; what the store is to record waits until it answers."""

    def __init__(self, job: OpenJob, pool: ReplicaPool) -> None:
        self._job = job
        self._pool = pool
        self._watchers = NodeWatchers()
        self._unrecorded: deque[KeptNotice] = deque()
        self._later: list[tuple[Node, float]] = []
        self._logger = get_run_logger()

    def look(self) -> None:
        """Drain the nodes that are to go; without the store."""
        due, self._later = self._later, []
        for node, deadline in due:
            self._obey(node, deadline)
        for node, notice in self._watchers.look():
            if notice.kind is Kind.REBALANCE:
                self._pool.cordon(node)
            elif notice.ends_node:
                self._obey(node, notice.deadline)
            self._logger.warning(
                "node %s: %s notice of %s: %s", node.host, notice.kind, notice.source, notice.action
            )
            self._unrecorded.append(_kept(node, notice))
        for told in self._watchers.take_told():
            self._logger.warning("%s", told)

    def _obey(self, node: Node, deadline: float | None) -> None:
        if deadline is None or deadline - time.time() <= LEAD_SECONDS:
            self._watchers.drained(node)
            self._pool.drain_node(node, deadline)
        else:
            self._pool.cordon(node)
            self._later.append((node, deadline))

    def record(self) -> None:
        """Tell the store of what came.

        Raises:
            StoreError: the next call does what is left.
        """
        if not self._unrecorded:
            return
        with reopen(self._job) as store:
            while self._unrecorded:
                store.record_notice(self._job.job_id, self._unrecorded[0])
                self._unrecorded.popleft()


def _kept(node: Node, notice: Notice) -> KeptNotice:
    return KeptNotice(
        node=node.node_id,
        source=notice.source,
        action=notice.action,
        deadline=notice.deadline,
        seen_at=notice.seen_at,
        kind=notice.kind,
        event=notice.id,
    )
