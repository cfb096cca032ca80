"""Hear of nodes that are being taken back, and have their replicas leave in time."""

from __future__ import annotations

from prefect import get_run_logger

from dray.cluster import ClusterInfo, Node, ReplicaPool
from dray.cluster.watching import NodeWatchers
from dray.errors import StoreError
from dray.job.opening import OpenJob, reopen
from dray.spot import Notice
from dray.store import Notice as KeptNotice


class Noticing:
    """Asks the nodes' watchers; there are none on a cluster of stable nodes only."""

    def __init__(self, job: OpenJob, pool: ReplicaPool, cluster: ClusterInfo) -> None:
        self._job = job
        self._pool = pool
        self._watchers = NodeWatchers() if any(not node.stable for node in cluster.nodes) else None
        self._logger = get_run_logger()

    def look(self) -> None:
        """Record what is new, and drain the nodes that are to go."""
        for node, notice in self._watchers.look() if self._watchers else ():
            self._logger.warning(
                "node %s: %s notice of %s: %s", node.host, notice.kind, notice.source, notice.action
            )
            self._record(node, notice)
            if notice.ends_node:
                self._pool.leave(node, notice.deadline)

    def _record(self, node: Node, notice: Notice) -> None:
        kept = KeptNotice(
            node=node.node_id,
            source=notice.source,
            action=notice.action,
            deadline=notice.deadline,
            seen_at=notice.seen_at,
            kind=notice.kind,
            event=notice.id,
        )
        try:
            with reopen(self._job) as store:
                store.record_notice(self._job.job_id, kept)
        except StoreError as error:  # the node goes all the same; a drained replica says so itself
            self._logger.warning("a notice is not recorded: %s", type(error).__name__)
