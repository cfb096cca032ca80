"""A cluster of threads: real replicas in this process, on nodes that exist by name and can be lost.

The real driver runs on it as it runs on Ray. A test says how replicas die, in a :class:`Script`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import ClusterInfo, Node
from dray.cluster.capacity import Capacity, Room
from dray.cluster.losses import NodeFacts
from dray.cluster.ray_fleet import Began
from dray.cluster.reach import Needs, Reached
from dray.engine.client import ReplicaClient
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.replica import FLUSH_SECONDS, Replica, ReplicaStatus, Whereabouts
from dray.errors import DrayError, EngineDeadError, EngineStartError, ReplicaLeftError, ReplicaLostError
from dray.notices.notice import Notice
from dray.requests.model import Outcome


class Death(StrEnum):
    """How the end of an engine shows to those who call it."""

    MEMORY = "memory"  # as the engine says: it found none
    ENGINE = "engine"  # the engine died, and its node lives
    NODE = "node"  # replica and node are gone


@dataclass(frozen=True, kw_only=True)
class Script:
    """What happens to replicas.

    ``death`` is how an engine's own end shows. ``lose`` says, before each micro-batch of a replica, whether
    it is lost with its node, given the replica's number (in order of their starts) and the batch's.
    ``hold`` is called with each micro-batch, and may keep it for a while: its rows then take as long.
    ``spec`` may change what an engine is built with on a node. Engines on ``broken`` nodes die alone,
    whatever ``death`` says. A finished row waits ``flush`` seconds for its micro-batch, and ``most`` replicas
    are started in all.
    """

    death: Death = Death.ENGINE
    lose: Callable[[int, int], bool] = lambda replica, batch: False
    hold: Callable[[Sequence[Outcome]], None] = lambda batch: None
    spec: Callable[[EngineSpec, str], EngineSpec] = lambda spec, node: spec
    most: int = 200
    broken: frozenset[str] = frozenset()
    flush: float = FLUSH_SECONDS


class ThreadReplica:
    """A replica in this process, as its driver and shard tasks would see it in another one."""

    def __init__(self, number: int, name: str, node: str, spec: EngineSpec, fleet: ThreadFleet) -> None:
        self.name = name
        self.lost: DrayError | None = None
        self._number = number
        self._node = node
        self._fleet = fleet
        self._replica = Replica(name, spec, exit_when_dead=False)
        self._info: EngineInfo | None = None
        self._error: DrayError | None = None
        self._killed = False
        self._status_asked = False
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        try:
            self._info = self._replica.ready()
        except DrayError as error:
            self._error = error

    # -- as the driver sees it ----------------------------------------------------------------

    def node(self) -> str | None:
        return self._node

    def others(self) -> tuple[str, ...]:
        return ()

    def began(self) -> Began | None:
        if self.lost is not None:
            raise self.lost
        if self._error is not None:
            raise self._error
        if self._info is None:
            return None
        now = time.time()
        where = Whereabouts(node_id=self._node, host=self._node, process=now, ready=now)
        return Began(info=self._info, where=where)

    def ask_status(self) -> None:
        self._status_asked = True

    def status(self) -> ReplicaStatus | None:
        if self.lost is not None:
            raise self.lost
        if not self._status_asked:
            return None
        self._status_asked = False
        with suppress(ReplicaLeftError):
            try:
                self._replica.check()  # a process would have ended with its engine
            except EngineDeadError as error:
                raise self._died(error) from None
        return self._replica.status()

    def drain(self, seconds: float) -> None:
        self._replica.drain(seconds)

    def kill(self) -> None:
        self.lost = self.lost or ReplicaLostError("killed")
        if not self._killed:
            self._killed = True
            self._replica.stop()

    def is_gone(self) -> bool:
        return self.lost is not None

    def fate(self) -> NodeFacts:
        return self._fleet.fate_of(self._node)

    # -- as a shard task sees it ----------------------------------------------------------------

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost
        self._replica.check()

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        self._replica.feed(session, lines, last)

    def results(self, session: str, rows: int, seconds: float = FLUSH_SECONDS) -> Iterator[list[Outcome]]:
        script = self._fleet.script
        try:
            for count, batch in enumerate(self._replica.results(session, rows, script.flush)):
                if script.lose(self._number, count):
                    self._fleet.lose_node(self._node)
                if self.lost is None:
                    script.hold(batch)
                if self.lost is not None:
                    raise self.lost
                yield batch
        except EngineDeadError as error:
            raise self._died(error) from None

    def _died(self, error: EngineDeadError) -> DrayError:
        if self.lost is None:
            script = self._fleet.script
            death = Death.ENGINE if self._node in script.broken else script.death
            if death is Death.NODE:
                self._fleet.lose_node(self._node)
            else:
                self.lost = error if death is Death.MEMORY else EngineDeadError("the engine died")
        assert self.lost is not None
        return self.lost

    def heartbeat(self, session: str) -> None:
        self._replica.heartbeat(session)

    def abort(self, session: str) -> None:
        self._replica.abort(session)


class ThreadFleet:
    """Nodes by name: where one is lost, another comes in its place, with ``.1`` behind its name."""

    def __init__(self, nodes: Sequence[str], script: Script | None = None) -> None:
        self.script = script or Script()
        self.replicas: list[ThreadReplica] = []
        self.deaths: list[str] = []
        self._nodes = list(nodes)
        self._gone: set[str] = set()
        self._losses: Counter[str] = Counter()
        self._notices: list[tuple[Node, Notice]] = []
        self._guard = threading.Lock()
        self.info = ClusterInfo(
            address="threads",
            nodes=tuple(_node(name) for name in nodes),
            seconds=0.0,
            stable_resource="dray_stable",
            own=True,
        )

    # -- as the driver sees it ----------------------------------------------------------------

    def launch(
        self,
        name: str,
        spec: EngineSpec,
        ask: ReplicaResources,
        *,
        avoid: Collection[str],
        never: Collection[str] = (),
    ) -> ThreadReplica:
        with self._guard:
            if len(self.replicas) >= self.script.most:
                raise EngineStartError(f"more than {self.script.most} replicas were started")
            live = Counter(one.node() for one in self.replicas if not one.is_gone())
            node = min(self._nodes, key=lambda one: (one in avoid, live[one], self._nodes.index(one)))
            made = ThreadReplica(len(self.replicas), name, node, self.script.spec(spec, node), self)
            self.replicas.append(made)
            return made

    def capacity(self) -> Capacity | None:
        rooms = tuple(Room(cpus=64, gpus=0, free_cpus=64, free_gpus=0) for _ in self._nodes)
        return Capacity(nodes=tuple(_node(name) for name in self._nodes), rooms=rooms)

    def no_place_for_tasks(self) -> str | None:
        return None

    def reached(self, needs: Needs) -> list[Reached] | None:
        return []

    def notices(self) -> list[tuple[Node, Notice]]:
        with self._guard:
            found, self._notices = self._notices, []
        return found

    def warnings(self) -> list[str]:
        return []

    def drain(self, node: Node, deadline: float) -> None:
        """Nothing here places by it."""

    def fate_of(self, node: str) -> NodeFacts:
        """What became of a replica that died there."""
        return NodeFacts(alive=node not in self._gone, draining=False, preempted=False, oom=False)

    # -- as a shard task sees it ----------------------------------------------------------------

    def find(self, name: str) -> ReplicaClient:
        for replica in self.replicas:
            if replica.name == name:
                return replica
        raise ReplicaLostError(f"replica {name} is gone")

    # -- as a test sees it ------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """The nodes that are there now."""
        return list(self._nodes)

    def notice(self, node: str, notice: Notice) -> None:
        """A notice comes for a node."""
        with self._guard:
            self._notices.append((_node(node), notice))

    def lose_node(self, node: str) -> None:
        """A node goes with all that is on it; another comes in its place."""
        with self._guard:
            if node in self._gone:
                return
            self._gone.add(node)
            first = node.partition(".")[0]
            self._losses[first] += 1
            self._nodes[self._nodes.index(node)] = f"{first}.{self._losses[first]}"
        for replica in self.replicas:
            if replica.node() == node and replica.lost is None:
                replica.lost = ReplicaLostError("lost")
                replica._replica.stop()

    def stop(self) -> None:
        """End what is left."""
        for replica in self.replicas:
            replica.kill()


class ThreadCluster:
    """A fleet as a cluster that a job joins."""

    rented = None

    def __init__(self, fleet: ThreadFleet) -> None:
        self.fleet = fleet

    def start(self) -> None:
        pass

    def wait(self, look: Callable[[], None] = lambda: None) -> ClusterInfo:
        look()
        return self.fleet.info

    def check(self) -> None:
        pass

    def leave(self) -> None:
        self.fleet.stop()

    def release(self) -> None:
        self.leave()


def _node(name: str) -> Node:
    return Node(node_id=name, host=name, cpus=64, gpus=0, stable=False)
