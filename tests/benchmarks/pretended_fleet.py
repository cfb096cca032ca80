"""Replicas and shard tasks that are pretended, for a real driver on a real store: clocks, not machines.

A replica is ready when its start time is over, and answers each look. A shard task claims its place, counts
rows into the store and ends its shard by the store's own calls; no row is computed or stored. All tasks run
in one process beside the driver's, a few threads with a connection each.
"""

from __future__ import annotations

import heapq
import itertools
import math
import multiprocessing
import queue
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import ClusterInfo, Node
from dray.cluster.capacity import Capacity, Room
from dray.cluster.losses import NodeFacts
from dray.cluster.ray_fleet import Began
from dray.cluster.reach import Needs, Reached
from dray.driver.executor import TaskEnd
from dray.engine.loop_stats import LoopStats
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.replica import ReplicaStatus, Whereabouts
from dray.notices.notice import Notice
from dray.shard.task import Ended, TaskResult
from dray.shard.work import ShardReceipt, ShardWork
from dray.store import ShardLease, Store, commit, jobs, open_store, shards
from tests.benchmarks.pretended_pace import Idle, Sharing

MEAN_LATER = 0.5
"""By which share of their least time replicas start later, on average."""

_PER_NODE = 8  # replicas
_CLOSE_SECONDS = 10.0  # for the last word of the process that pretends tasks
_ASK_SECONDS = 0.2  # as a waiting shard task
_LEAST_ROWS = 1e-6  # fewer are none: they are counted by a clock
_ALIVE = NodeFacts(alive=True, draining=False, preempted=False, oom=False)


class PretendedReplica:
    """A replica that is ready at a time, and has nothing to do."""

    def __init__(self, name: str, node: str, ready: float, sequences: int) -> None:
        self.name = name
        self._node = node
        self._ready = ready
        self._asked = False
        self._info = EngineInfo(
            engine="pretended", version="0", model="m", max_num_seqs=sequences, max_model_len=1, timeline={}
        )

    def others(self) -> tuple[str, ...]:
        """It is on one node."""
        return ()

    def node(self) -> str | None:
        return self._node

    def began(self) -> Began | None:
        now = time.time()
        if now < self._ready:
            return None
        where = Whereabouts(node_id=self._node, host=self._node, process=self._ready, ready=self._ready)
        return Began(info=self._info, where=where)

    def ask_status(self) -> None:
        self._asked = True

    def status(self) -> ReplicaStatus | None:
        if not self._asked:
            return None
        self._asked = False
        return ReplicaStatus(
            name=self.name, node=self._node, pid=1, began=self._ready, running=1, waiting=1,
            sessions=2, stats=LoopStats(), log=[],
        )  # fmt: skip

    def drain(self, seconds: float) -> None:
        pass

    def kill(self) -> None:
        pass

    def is_gone(self) -> bool:
        return False

    def fate(self) -> NodeFacts:
        return _ALIVE


class PretendedFleet:
    """Nodes of eight replicas each. Starts take one to two times ``start_seconds``."""

    def __init__(self, replicas: int, *, start_seconds: float, sequences: int) -> None:
        self._nodes = tuple(
            Node(node_id=f"node-{number}", host=f"host-{number}", cpus=64, gpus=_PER_NODE, stable=False)
            for number in range(-(-replicas // _PER_NODE))
        )
        self._count = itertools.count()
        self._random = random.Random(replicas)
        self._start_seconds = start_seconds
        self._sequences = sequences
        self.info = ClusterInfo(
            address="pretended", nodes=self._nodes, seconds=0.0, stable_resource="dray_stable"
        )

    def launch(
        self,
        name: str,
        spec: EngineSpec,
        ask: ReplicaResources,
        *,
        avoid: Collection[str],
        never: Collection[str] = (),
    ) -> PretendedReplica:
        node = self._nodes[next(self._count) // _PER_NODE % len(self._nodes)]
        ready = time.time() + self._start_seconds * (1 + 2 * MEAN_LATER * self._random.random())
        return PretendedReplica(name, node.node_id, ready, self._sequences)

    def capacity(self) -> Capacity | None:
        room = Room(cpus=64, gpus=_PER_NODE, free_cpus=64, free_gpus=0)
        return Capacity(nodes=self._nodes, rooms=(room,) * len(self._nodes))

    def no_place_for_tasks(self) -> str | None:
        return None

    def reached(self, needs: Needs) -> list[Reached] | None:
        return []

    def notices(self) -> list[tuple[Node, Notice]]:
        return []

    def warnings(self) -> list[str]:
        return []

    def drain(self, node: Node, deadline: float) -> None:
        pass


# -- shard tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a replica's rows come, and how often the task of a shard counts them."""

    rows_per_second: float
    commit_seconds: float
    threads: int = 4


class PretendedTasks:
    """The driver's executor: a process that pretends all shard tasks."""

    def __init__(self, store_url: str, pace: Pace) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, store_url, pace), daemon=True)
        self._process.start()
        self.running = 0
        self.waited = 0.0  # seconds, for tasks to end
        self.idle: Idle | None = None  # once it is closed

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def start(self, stable_resource: str) -> None:
        """Nothing: the process runs."""

    def submit(self, work: ShardWork) -> None:
        self.running += 1
        self._line.send(work)

    def poll(self, seconds: float) -> list[TaskEnd]:
        found: list[TaskEnd] = []
        began = time.monotonic()
        self._line.poll(seconds)
        self.waited += time.monotonic() - began
        while self._line.poll(0):
            found.append(self._line.recv())
        self.running -= len(found)
        return found

    def cancel(self, number: int, reason: str) -> None:
        """Its end is not waited for."""

    def close(self) -> None:
        with suppress(OSError, EOFError):  # it died: what the driver raises says more
            self._line.send(None)
            while self.idle is None and self._line.poll(_CLOSE_SECONDS):
                found = self._line.recv()
                self.idle = found if isinstance(found, Idle) else None
        self._line.close()
        self._process.join(30)
        self._process.kill()


@dataclass(order=True)
class _Task:
    """A shard task at work. It comes to its turn when it is ``due`` (monotonic)."""

    due: float
    number: int
    work: ShardWork = field(compare=False)
    lease: ShardLease | None = field(default=None, compare=False)
    left: float = field(default=0.0, compare=False)  # rows
    began: float = field(default=0.0, compare=False)
    waits: bool = field(default=False, compare=False)  # has asked for a place before
    had: float = field(default=0.0, compare=False)  # as its replica's sharing had it when it was counted last


class _Thread(threading.Thread):
    """Some of the tasks, on one connection to the store."""

    def __init__(self, store_url: str, pace: Pace, sharing: Sharing, tell: Callable[[TaskEnd], None]) -> None:
        super().__init__(daemon=True)
        self._sharing = sharing
        self.works: queue.SimpleQueue[ShardWork] = queue.SimpleQueue()
        self._url = store_url
        self._pace = pace
        self._tell = tell
        self._tasks: list[_Task] = []
        self.late: list[float] = []  # seconds after its time at which each turn came

    def run(self) -> None:
        with open_store(self._url, create=False) as store:
            while True:
                self._take()
                task = heapq.heappop(self._tasks)
                self.late.append(time.monotonic() - task.due)
                if self._turn(store, task):
                    heapq.heappush(self._tasks, task)

    def _take(self) -> None:
        """New work, waited for until the next task is due."""
        while True:
            wait = self._tasks[0].due - time.monotonic() if self._tasks else None
            if wait is not None and wait <= 0 and self.works.empty():
                return
            try:
                work = self.works.get(timeout=None if wait is None else max(wait, 0))
            except queue.Empty:
                return
            heapq.heappush(self._tasks, _Task(time.monotonic(), work.shard.number, work))

    def _turn(self, store: Store, task: _Task) -> bool:
        """One call of a task to the store; False when it has ended."""
        if task.lease is None:
            return self._claim(store, task)
        replica = task.lease.replica or ""
        had = self._sharing.had(replica)
        left = max(task.left - (had - task.had), 0.0)
        if left < _LEAST_ROWS:
            left = 0.0
        _count(store, task.lease, math.ceil(task.left) - math.ceil(left))
        task.left, task.had = left, had
        if left:
            self._plan(task, replica)
            return True
        store.finish_shard(task.lease)
        self._sharing.ends(replica)
        self._end(task, Ended.DONE)
        return False

    def _claim(self, store: Store, task: _Task) -> bool:
        work = task.work
        claim = store.place_shard(
            work.job, task.number, owner=f"pretended-{task.number}", ttl=work.ttl, again=task.waits
        )
        task.waits = True
        if claim.lease is None:
            task.due = time.monotonic() + _ASK_SECONDS
            if not claim.waiting:
                self._end(task, Ended.HELD)
            return claim.waiting
        row = store.replica(work.job.job_id, claim.lease.replica or "")
        assert row is not None
        store.note_attempt(claim.lease, node=row.node)
        task.lease, task.left = claim.lease, work.shard.rows
        task.began = time.monotonic()
        replica = claim.lease.replica or ""
        self._sharing.begins(replica)
        task.had = self._sharing.had(replica)
        self._plan(task, replica)
        return True

    def _plan(self, task: _Task, replica: str) -> None:
        """Its next turn: when its rows are to be counted, or are all there."""
        seconds = task.left / self._sharing.rate(replica)
        task.due = time.monotonic() + min(self._pace.commit_seconds, seconds)

    def _end(self, task: _Task, how: Ended) -> None:
        receipt = None
        if task.lease is not None:
            receipt = ShardReceipt(
                number=task.number, rows=task.work.shard.rows, skipped=0,
                seconds=time.monotonic() - task.began, last_commit=time.time(),
                replica=task.lease.replica or "",
            )  # fmt: skip
        self._tell(TaskEnd(number=task.number, result=TaskResult(how=how, message="", receipt=receipt)))


def _count(store: Store, lease: ShardLease, rows: int) -> None:
    """What a commit does but for its rows: the fence, the counters, the signals to stop."""
    gain = commit._Gain(
        done=rows, failed=0, prompt_tokens=100 * rows, cached_tokens=0, completion_tokens=64 * rows
    )

    def work(tx: Any) -> None:
        shards.renew(tx, lease)
        commit._count(tx, lease, gain)
        jobs.stop_signals(tx, lease.key)

    store._write(work)


def _serve(line: Connection, store_url: str, pace: Pace) -> None:
    guard = threading.Lock()

    def tell(end: TaskEnd) -> None:
        with guard:
            line.send(end)

    sharing = Sharing(pace.rows_per_second)
    threads = [_Thread(store_url, pace, sharing, tell) for _ in range(pace.threads)]
    for thread in threads:
        thread.start()
    while True:
        try:
            work = line.recv()
        except EOFError:
            return
        if work is None:
            late = sorted(itertools.chain.from_iterable(thread.late for thread in threads))
            with guard:
                line.send(replace(sharing.idle(), late=late[int(len(late) * 0.99)] if late else 0.0))
            return
        threads[work.shard.number % len(threads)].works.put(work)
