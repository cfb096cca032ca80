"""The lanes of a pool: which are to have a replica, when the next of each is due, and which can be spared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import count, islice
from typing import Protocol

from dray.driver.replicas.handle import ReplicaHandle
from dray.store import ReplicaState

LONGEST_PAUSE = 30.0


class Budgets(Protocol):
    """What earlier losses came to. Calls may raise StoreError."""

    def excluded(self, lane: str) -> Collection[str]:
        """Nodes that are to have no more replicas of this lane while another can."""

    def shrink_steps(self) -> int:
        """How often memory did not suffice."""

    def undecided(self, lane: str) -> bool:
        """Whether a lack of memory of this lane is not judged yet: its successor is to be smaller."""


class Lanes:
    """Lanes by number. A closed one has no more replicas, until it is opened again."""

    def __init__(self, lanes: int, relaunch: float) -> None:
        self._relaunch = relaunch
        self._open = set(range(lanes))
        self._due = dict.fromkeys(range(lanes), 0.0)  # without a replica: when to start one
        self.failures: Counter[int] = Counter()  # since one of the lane was ready

    def __len__(self) -> int:
        return len(self._open)

    def due(self) -> list[int]:
        """The lanes whose next replica is to start now."""
        now = time.monotonic()
        return [lane for lane, at in self._due.items() if at <= now]

    def started(self, lane: int) -> None:
        """The lane has a replica."""
        self._due.pop(lane, None)

    def want(self, lane: int, pause: float = 0.0) -> None:
        """The lane's next replica is due after ``pause`` seconds, unless the lane is closed."""
        if lane in self._open:
            self._due[lane] = time.monotonic() + pause if pause else 0.0

    def failed(self, lane: int) -> None:
        """The lane's replica died: the next one comes after a pause, longer each time."""
        self.failures[lane] += 1
        self.want(lane, min(self._relaunch * 2.0 ** min(self.failures[lane], 30), LONGEST_PAUSE))

    def is_hopeful(self, lane: int, replicas: Sequence[ReplicaHandle]) -> bool:
        """Whether engines start in other lanes than this one, in which one failed, as far as is known.

        One is ready, or as many start for the first time, on nodes that they have, as have failed. So one bad
        node ends no job whose other replicas take minutes to load the model.
        """
        others = [one for one in replicas if one.lane != lane and one.lane in self._open]
        starting = [one for one in others if one.state is ReplicaState.STARTING and one.note is None]
        untried = sum(not self.failures[one.lane] for one in starting)
        failing = {lane} | {lane for lane in self._open if self.failures[lane]}
        return any(one.state is ReplicaState.READY for one in others) or untried >= len(failing)

    def open(self, more: int) -> None:
        """Open so many more, those with the lowest numbers first."""
        closed = (lane for lane in count() if lane not in self._open)
        for lane in list(islice(closed, max(more, 0))):
            self._open.add(lane)
            self._due[lane] = 0.0

    def close(self, lane: int) -> None:
        """The lane has no more replicas."""
        self._open.discard(lane)
        self._due.pop(lane, None)

    def spare(self, replicas: Sequence[ReplicaHandle], idle: Collection[ReplicaHandle]) -> list[int]:
        """Open ones whose replicas do not work, in the order in which they can be done without.

        Of replicas that are ready, these are the ``idle`` ones.
        """
        last = {replica.lane: replica for replica in replicas}
        ranks = {lane: 1 if lane in self._due else _rank(last.get(lane), idle) for lane in self._open}
        spare = [(rank, -lane) for lane, rank in ranks.items() if rank is not None]
        return [-lane for _, lane in sorted(spare)]


def _rank(replica: ReplicaHandle | None, idle: Collection[ReplicaHandle]) -> int | None:
    """When a lane may go: first those that wait for a place, then without a replica, starting, idle."""
    if replica is None:
        return 1
    if replica.state is ReplicaState.STARTING:
        return 0 if replica.placed is None else 2  # as last seen: to ask each one takes long
    return 3 if replica in idle else None


def on_free_nodes(idle: Sequence[ReplicaHandle], ready: Sequence[ReplicaHandle]) -> list[ReplicaHandle]:
    """The idle replicas on whose nodes no ``ready`` one works: a node is given back whole."""
    busy = {node for one in ready if one not in idle for node in one.nodes}
    return [one for one in idle if busy.isdisjoint(one.nodes)]
