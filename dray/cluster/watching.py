"""Notices of the nodes' ends: a watcher on each node that may be taken back, asked by the driver."""

from __future__ import annotations

import threading
from typing import Any

from dray.cluster.base import NAMESPACE, Node
from dray.cluster.connect import live_nodes
from dray.cluster.handed_down import handed_down
from dray.cluster.ray_private import draining
from dray.spot.detecting import BaseUrls, detect
from dray.spot.notices import Kind, Notice
from dray.spot.watcher import Watcher

_ASK_SECONDS = 1.0


class NodeWatch:
    """Runs on a node, as a Ray actor: detects the cloud, and collects its notices."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._found: list[Notice] = []
        self._cloud: str | None = None
        threading.Thread(target=self._start, name="dray-notices", daemon=True).start()

    def notices(self) -> list[Notice]:
        """All that came so far."""
        with self._guard:
            return list(self._found)

    def _start(self) -> None:
        host = detect(BaseUrls.from_env())
        self._cloud = host.cloud
        Watcher(host.sources, self._take).start()

    def _take(self, notice: Notice) -> None:
        with self._guard:
            self._found.append(notice)


class NodeWatchers:
    """One watcher on each node that is not stable, for as long as this process lives.

    Stable nodes need none: when one goes, so does the job, and whoever starts it again goes on.
    """

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._known: set[tuple[str, str]] = set()

    def look(self) -> list[tuple[Node, Notice]]:
        """Notices that are new since the last look, of the nodes themselves and of Ray."""
        nodes = {node.node_id: node for node in live_nodes()[0] if not node.stable}
        self._actors = {
            node_id: self._actors[node_id] if node_id in self._actors else _watch_on(node_id)
            for node_id in nodes
        }
        found = [(node_id, notice) for node_id, told in self._ask().items() for notice in told]
        announced = {node_id for node_id, _ in self._known} | {node_id for node_id, _ in found}
        found += [  # of the others, it is we who drain
            (node_id, _of_ray(node_id, deadline))
            for node_id, deadline in draining().items()
            if node_id not in announced
        ]
        fresh = [one for one in found if one[0] in nodes and (one[0], one[1].id) not in self._known]
        self._known |= {(node_id, notice.id) for node_id, notice in fresh}
        return [(nodes[node_id], notice) for node_id, notice in fresh]

    def _ask(self) -> dict[str, list[Notice]]:
        import ray

        calls = {actor.notices.remote(): node_id for node_id, actor in self._actors.items()}
        if not calls:
            return {}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_ASK_SECONDS)
        found = {}
        for reference in ready:
            try:
                found[calls[reference]] = ray.get(reference)
            except ray.exceptions.RayError:  # the node is gone, or its watcher starts again
                continue
        return found


def _watch_on(node_id: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    variables = handed_down()
    return (
        ray.remote(NodeWatch)
        .options(
            namespace=NAMESPACE,
            max_restarts=-1,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env={"env_vars": variables} if variables else None,
        )
        .remote()
    )


def _of_ray(node_id: str, deadline: float) -> Notice:
    """A node that somebody else drains in Ray: its autoscaler, or ``ray start`` after a SIGTERM."""
    return Notice(
        source="ray",
        kind=Kind.TERM,
        action="drain",
        deadline=deadline or None,
        seen_at=0.0,
        id=f"ray-drain-{node_id}",
    )
