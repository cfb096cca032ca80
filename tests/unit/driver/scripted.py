"""A fleet and an executor that do what a test says: the driver's own parts run without machines."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import ClusterInfo, Node
from dray.cluster.capacity import Capacity, Room
from dray.cluster.losses import NodeFacts
from dray.cluster.ray_fleet import Began
from dray.cluster.reach import Needs, Reached
from dray.driver.events import Event
from dray.driver.executor import TaskEnd
from dray.driver.intervals import Intervals
from dray.engine.loop_stats import LoopStats
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.replica import ReplicaStatus, Whereabouts
from dray.errors import DrayError
from dray.notices import Notice
from dray.shard.work import ShardWork
from dray.store import Store

QUICK = Intervals(
    step=0.005,
    status=0.01,
    notices=0.01,
    stop_signals=0.01,
    progress=0.01,
    shards=0.01,
    idle=0.01,
    publish=0.05,
    reach=0.01,
    spool=0.01,
    relaunch=0.001,
)
NODE = Node(node_id="node", host="host", cpus=8, gpus=0, stable=True)
ALIVE = NodeFacts(alive=True, draining=False, preempted=False, oom=False)
INFO = EngineInfo(engine="e", version="0", model="m", max_num_seqs=8, max_model_len=9, timeline={})

Poll = bool | Exception
"""What a start comes to at one look: an error, or whether it is ready."""


def cluster(*nodes: Node, **changes: Any) -> ClusterInfo:
    """A cluster of these nodes; of one stable node where none is named."""
    info = ClusterInfo(address="a", nodes=nodes or (NODE,), seconds=0.0, stable_resource="dray_stable")
    return replace(info, **changes)


@dataclass(kw_only=True)
class ScriptedProcess:
    """A replica whose ``polls`` say how its start goes, and ``answers`` what it says then.

    Like a real one it answers only what it was asked, and no sooner than ``after`` looks later. Without an
    answer it says that it has no session; with ``silent`` it says nothing.
    """

    name: str
    spec: EngineSpec
    avoid: frozenset[str]
    never: frozenset[str] = frozenset()
    polls: list[Poll] = field(default_factory=list)
    answers: list[Exception] = field(default_factory=list)
    place: str | None = NODE.node_id
    beside: tuple[str, ...] = ()
    facts: NodeFacts = ALIVE
    sessions: int = 0
    silent: bool = False
    after: int = 2
    asked: int | None = None  # looks since the question that is open
    gone: bool = False
    killed: bool = False
    drains: list[float] = field(default_factory=list)
    log: list[tuple[int, str, str]] = field(default_factory=list)

    def others(self) -> tuple[str, ...]:
        return self.beside

    def node(self) -> str | None:
        return self.place

    def began(self) -> Began | None:
        found = self.polls.pop(0) if self.polls else False
        if isinstance(found, Exception):
            raise found
        now = time.time()
        where = Whereabouts(node_id=self.place or "", host="host", process=now, ready=now)
        return Began(info=INFO, where=where) if found else None

    def ask_status(self) -> None:
        self.asked = self.asked or 0

    def status(self) -> ReplicaStatus | None:
        if self.asked is None:
            return None
        self.asked += 1
        if self.silent or self.asked < self.after:
            return None
        self.asked = None
        if self.answers:
            raise self.answers.pop(0)
        log, self.log = self.log, []
        return ReplicaStatus(
            name=self.name, node=self.place or "", pid=1, began=1.0, running=0, waiting=0,
            sessions=self.sessions, stats=LoopStats(), log=log,
        )  # fmt: skip

    def drain(self, seconds: float) -> None:
        self.drains.append(seconds)

    def kill(self) -> None:
        self.killed = True

    def was_killed(self) -> bool:
        return self.killed

    def is_gone(self) -> bool:
        return self.gone

    def fate(self) -> NodeFacts:
        return self.facts


class ScriptedFleet:
    """Replicas follow ``scripts``, one for each in the order in which they are asked for."""

    def __init__(self, *scripts: Sequence[Poll], info: ClusterInfo | None = None) -> None:
        self.info = info or cluster()
        self.processes: list[ScriptedProcess] = []
        self.fresh: list[tuple[Node, Notice]] = []
        self.drained: list[Node] = []
        self.looks = 0
        self.place: str | None = NODE.node_id  # of the processes that are launched
        self.no_place: str | None = None
        self.reaching: list[Reached] | None = []
        self.asked: list[Needs] = []
        self.seen: Capacity | None = capacity_of(self.info.nodes)
        self._scripts = [list(script) for script in scripts]

    def launch(
        self,
        name: str,
        spec: EngineSpec,
        ask: ReplicaResources,
        *,
        avoid: Collection[str],
        never: Collection[str] = (),
    ) -> ScriptedProcess:
        polls = self._scripts.pop(0) if self._scripts else []
        made = ScriptedProcess(name=name, spec=spec, avoid=frozenset(avoid), polls=polls, place=self.place)
        made.never = frozenset(never)
        self.processes.append(made)
        return made

    def capacity(self) -> Capacity | None:
        return self.seen

    def no_place_for_tasks(self) -> str | None:
        return self.no_place

    def reached(self, needs: Needs) -> list[Reached] | None:
        self.asked.append(needs)
        return self.reaching

    def notices(self) -> list[tuple[Node, Notice]]:
        self.looks += 1
        found, self.fresh = self.fresh, []
        return found

    def warnings(self) -> list[str]:
        return []

    def drain(self, node: Node, deadline: float) -> None:
        self.drained.append(node)


def capacity_of(nodes: Sequence[Node]) -> Capacity:
    """All that these nodes have is free."""
    rooms = [Room(cpus=one.cpus, gpus=one.gpus, free_cpus=one.cpus, free_gpus=one.gpus) for one in nodes]
    return Capacity(nodes=tuple(nodes), rooms=tuple(rooms))


class ScriptedExecutor:
    """Keeps what is submitted; tasks end when a test says so."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.cancelled: list[int] = []
        self.ends: list[TaskEnd] = []
        self.closed = False

    def start(self, stable_resource: str) -> None:
        pass

    def submit(self, work: ShardWork) -> None:
        self.submitted.append(work.shard.number)

    def poll(self, seconds: float) -> list[TaskEnd]:
        time.sleep(seconds)
        found, self.ends = self.ends, []
        return found

    def cancel(self, number: int, reason: str) -> None:
        self.cancelled.append(number)

    def close(self) -> None:
        self.closed = True


class Heard:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def hear(self, event: Event) -> None:
        self.events.append(event)

    @property
    def lines(self) -> list[str]:
        """What people would read."""
        return [event.text for event in self.events if event.text is not None]


class BreakableStore:
    """A store whose calls raise ``error`` while there is one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: DrayError | None = None

    def __getattr__(self, name: str) -> Any:
        if self.error is not None and name != "close":
            raise self.error
        return getattr(self._store, name)

    @contextmanager
    def away(self, error: DrayError) -> Iterator[None]:
        """Calls of the block raise ``error``."""
        self.error = error
        try:
            yield
        finally:
            self.error = None
