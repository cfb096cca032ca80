"""Notices of the nodes' ends: a watcher on each node that may be taken back, asked by the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dray.cluster.base import NAMESPACE, Node
from dray.cluster.forwarded_env import handed_down
from dray.cluster.ray_nodes import live_nodes
from dray.cluster.ray_private import draining
from dray.notices.detecting import BaseUrls, detect_cloud, pod_sources
from dray.notices.notice import Notice, NoticeKind
from dray.notices.watcher import Watcher

_ASK_SECONDS = 1.0
_TRIES = 10  # to find the cloud: its service may be slow, or busy, while engines start beside us
_TRY_SECONDS = 5.0
_PAUSES = (5.0, 60.0)  # seconds after the first try, and at most
_UNHEARD = (
    "no metadata service of a cloud answers here, so this spot node may end without notice; in pods on EC2 "
    "the hop limit of instance metadata must be 2 (docs/interruptions.md)"
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a node's watcher has: all notices so far, and what went wrong since it was last asked.

    ``at`` is the node's own time when it answered (seconds since 1970), None where it is the reader's.
    """

    notices: list[Notice]
    told: list[str]
    at: float | None = None

    def as_of(self, now: float) -> list[Notice]:
        """The notices, with deadlines by the clock of a reader for whom it is ``now``."""
        ahead = 0.0 if self.at is None else self.at - now
        return [
            one if one.deadline is None else replace(one, deadline=one.deadline - ahead)
            for one in self.notices
        ]


class NodeWatch:
    """Runs on a node, as a Ray actor: detects the cloud, and collects its notices."""

    def __init__(self, *, spot: bool = False) -> None:
        self._spot = spot
        self._guard = threading.Lock()
        self._found: list[Notice] = []
        self._times: Counter[str] = Counter()  # how often each notice came
        self._told = _Warnings()
        logging.getLogger("dray.notices").addHandler(self._told)
        threading.Thread(target=self._start, name="dray-notices", daemon=True).start()

    def heard(self) -> Heard:
        """All that came so far."""
        with self._guard:
            return Heard(list(self._found), self._told.take(), time.time())

    def _start(self) -> None:
        Watcher(pod_sources(), self._take).start()
        pause, longest = _PAUSES
        host = detect_cloud(BaseUrls.from_env())
        for _ in range(_TRIES):
            if host.cloud is not None:
                break
            time.sleep(pause)
            pause = min(2 * pause, longest)
            host = detect_cloud(BaseUrls.from_env(), _TRY_SECONDS)
        if host.cloud is None and self._spot:
            logging.getLogger("dray.notices").warning(_UNHEARD)
        Watcher(host.sources, self._take).start()

    def _take(self, notice: Notice) -> None:
        """The driver hears again of one that was withdrawn and came back: some ids have no time in them."""
        with self._guard:
            self._times[notice.id] += 1
            times = self._times[notice.id]
            self._found.append(notice if times == 1 else replace(notice, id=f"{notice.id}#{times}"))


class _Warnings(logging.Handler):
    """Keeps messages until the driver asks for them. They name the request, and quote no answer."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=100)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())

    def take(self) -> list[str]:
        """What came since the last time."""
        return [self._kept.popleft() for _ in range(len(self._kept))]


class NodeWatchers:
    """One watcher on each node that is not stable, and that replicas are on.

    Stable nodes need none: the cloud does not take them back, and shards of a lost one run again elsewhere. A
    node that has no replica any more is left alone: an autoscaler ends those on which nothing runs.
    """

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._known: set[tuple[str, str]] = set()
        self._ours: set[str] = set()  # nodes that the driver drains
        self._told: list[str] = []

    def look(self, used: Collection[str]) -> list[tuple[Node, Notice]]:
        """Notices that are new since the last look, of the ``used`` nodes themselves and of Ray for them."""
        nodes = {node.node_id: node for node in live_nodes()[0] if not node.stable and node.node_id in used}
        self._end_unused(nodes)
        self._actors = {
            node_id: self._actors[node_id] if node_id in self._actors else _watch_on(nodes[node_id])
            for node_id in nodes
        }
        heard = self._ask()
        now = time.time()
        found = [(node_id, notice) for node_id, one in heard.items() for notice in one.as_of(now)]
        found += [
            (node_id, _of_ray(node_id, deadline))
            for node_id, deadline in draining().items()
            if node_id not in self._ours
        ]
        self._told += [
            f"node {nodes[node_id].host}: {text}" for node_id in heard for text in heard[node_id].told
        ]
        fresh = [one for one in found if one[0] in nodes and (one[0], one[1].id) not in self._known]
        self._known |= {(node_id, notice.id) for node_id, notice in fresh}
        return [(nodes[node_id], notice) for node_id, notice in fresh]

    def _end_unused(self, nodes: Collection[str]) -> None:
        import ray

        for node_id in self._actors.keys() - set(nodes):
            with suppress(ray.exceptions.RayError):
                ray.kill(self._actors[node_id], no_restart=True)

    def drained(self, node: Node) -> None:
        """The driver itself drains this node in Ray: that is no new notice."""
        self._ours.add(node.node_id)

    def take_told(self) -> list[str]:
        """What went wrong on the nodes since the last time."""
        found, self._told = self._told, []
        return found

    def _ask(self) -> dict[str, Heard]:
        import ray

        calls = {actor.heard.remote(): node_id for node_id, actor in self._actors.items()}
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


def _watch_on(node: Node) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    variables = handed_down()
    return (
        ray.remote(NodeWatch)
        .options(
            namespace=NAMESPACE,
            max_restarts=-1,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            runtime_env={"env_vars": variables} if variables else None,
        )
        .remote(spot=node.spot)
    )


def _of_ray(node_id: str, deadline: float) -> Notice:
    """A node that another process drains in Ray: its autoscaler, or ``ray start`` after a SIGTERM."""
    return Notice(
        source="ray",
        kind=NoticeKind.TERM,
        action="drain",
        deadline=deadline or None,
        seen_at=0.0,
        id=f"ray-drain-{node_id}",
    )
