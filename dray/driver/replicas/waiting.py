"""Why a replica has no place yet: what it asks for, beside what the nodes have and what is free on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from dray.cluster.asking import ReplicaResources, ask_of
from dray.cluster.base import NodeType
from dray.cluster.capacity import Capacity
from dray.driver.fleet import Fleet
from dray.driver.replicas.handle import ReplicaHandle
from dray.engine.protocol import EngineSpec
from dray.wording import plural

_LOOK_SECONDS = 3.0  # between two looks, and until a replica counts as one that waits
_PLACING_SECONDS = 30.0  # for Ray to start a replica where there is room: an environment may be made first
_LOOKS_PER_SECOND = 100  # at replicas: each is a question to Ray's head
_REPLACED_SECONDS = 60.0  # for a node that went to be replaced by hand, before replicas ask for less
_STUCK_SECONDS = 60.0  # for places on several nodes that are free, before they are asked for anew
_PATIENCE = 600.0  # the same, where an autoscaler may be at work


def why_waiting(ask: ReplicaResources, capacity: Capacity, coming: Sequence[NodeType] | None) -> str:
    """The reason in words, to follow on the replica's name: ``asks for 2 CPUs, ...``."""
    told, drained = _why(ask, capacity, coming), capacity.drained(ask)
    if not drained or capacity.takes(ask):
        return told
    being = "is being drained and takes" if drained == 1 else "are being drained and take"
    return f"{told}; {plural(drained, 'node')} with these {being} nothing new"


def _why(ask: ReplicaResources, capacity: Capacity, coming: Sequence[NodeType] | None) -> str:
    rooms = capacity.open_rooms
    free, large = sum(room.takes(ask) for room in rooms), sum(room.holds(ask) for room in rooms)
    if free >= ask.nodes:
        have = "a node has" if ask.nodes == 1 else _number(free)
        return f"asks for {ask}, which {have} free; Ray has not started it yet"
    if free and large >= ask.nodes:
        return f"asks for {ask}, which {_number(free)} free"
    if sum(room.has_enough(ask) for room in rooms) >= ask.nodes:
        return f"asks for {ask}, and what is free of GPUs is parts of several"
    if large >= ask.nodes:
        left = [(room.free_cpus, room.free_gpus) for room in rooms]
        return f"asks for {ask}, {_largest(ask, left, 'free node')}"
    if large:
        return f"asks for {ask}, which {_number(large)}; {_hope(ask, capacity, coming)}"
    largest = _largest(ask, [(room.cpus, room.gpus) for room in rooms], "node")
    return f"asks for {ask}, {largest}; {_hope(ask, capacity, coming)}"


def _number(nodes: int) -> str:
    return f"{plural(nodes, 'node')} {'has' if nodes == 1 else 'have'}"


def _largest(ask: ReplicaResources, found: Sequence[tuple[float, float]], what: str) -> str:
    """What comes nearest: the most GPUs where too few, else the most CPUs beside enough GPUs."""
    gpus = max((gpus for _, gpus in found), default=0.0)
    if ask.gpus > gpus:
        largest = ReplicaResources(cpus=0, gpus=gpus)
        return f"the largest {what} has {largest}" if gpus else f"no {what} has a GPU"
    cpus = max((cpus for cpus, beside in found if beside >= ask.gpus), default=0.0)
    beside = " beside its GPUs" if ask.gpus else ""
    return f"the largest {what} has {ReplicaResources(cpus=cpus)}{beside}"


def _hope(ask: ReplicaResources, capacity: Capacity, coming: Sequence[NodeType] | None) -> str:
    if (ask.cpus, ask.gpus) in capacity.refused:
        return "the cluster's autoscaler says that it cannot start such a node"
    if coming is None:
        return "it waits until such a node joins"
    if any(ask.fits(one.cpus, one.gpus) for one in coming):
        return "the cluster's autoscaler is asked for such a node"
    if coming:
        return "the cluster's autoscaler has no such node"
    return "it waits until such a node joins, and this cluster has no autoscaler"


class Places:
    """Follows which replicas wait for a place, and what each asks for. It last ``looked`` at that time.

    Raises:
        ConfigError: what a replica needs is out of the cluster's reach.
    """

    def __init__(self, spec: EngineSpec, fleet: Fleet, lanes: int) -> None:
        self._spec = spec
        self._fleet = fleet
        self._cluster = fleet.info
        self._lanes = lanes
        self.looked = self._look_at = 0.0  # monotonic
        self._hopeless: float | None = None  # since when no node could hold what is asked for
        self.never: set[str] = set()  # nodes that cannot import what the driver has
        self.ask = ask_of(spec, fleet.info, lanes)

    def shun(self, node: str) -> bool:
        """No replica comes to this node any more. Whether one still may come to another one."""
        self.never.add(node)
        capacity = self._capacity()
        return capacity is None or capacity.holds(self.ask)

    def _capacity(self) -> Capacity | None:
        found = self._fleet.capacity()
        return found.without(self.never) if found and self.never else found

    def look(self, starting: Sequence[ReplicaHandle], working: int = 0) -> list[ReplicaHandle]:
        """Note at each replica that starts why it waits. Returns those that are to ask again.

        For less; or on several nodes that are free: they avoid a node, perhaps, that they have to take now.
        ``working`` is how many places the job's other replicas have, counted by node.
        """
        now = time.monotonic()
        if now < self._look_at:
            return []
        self.looked, self._look_at = now, now + max(_LOOK_SECONDS, len(starting) / _LOOKS_PER_SECOND)
        waiting = [one for one in starting if not one.has_place()]
        reason, again, due = None, False, _LOOK_SECONDS
        anew: list[ReplicaHandle] = []
        if waiting:
            capacity = self._capacity()
            if capacity is None:
                return []
            reason = why_waiting(self.ask, capacity, self._cluster.coming)
            again = self._asks_less(capacity, now)
            # Ray does not tell which of them has its place until it has a process.
            placed = working + sum(len(one.nodes) for one in starting)
            if capacity.takes(self.ask) or capacity.taken(self.ask) > placed:
                due = _PLACING_SECONDS
            if capacity.takes(self.ask):
                stuck = [one for one in waiting if now - one.asked > _STUCK_SECONDS]
                anew = stuck if self.ask.nodes > 1 else []
        for one in starting:
            one.note = reason if one in waiting and now - one.asked > due else None
        return waiting if again else anew

    def _asks_less(self, capacity: Capacity, now: float) -> bool:
        """Whether the nodes that could hold a replica went for good, and what is left holds a smaller one."""
        coming = self._cluster.coming
        possible = capacity.holds(self.ask)
        possible = possible or any(self.ask.fits(one.cpus, one.gpus) for one in coming or ())
        if possible:
            self._hopeless = None
            return False
        self._hopeless = self._hopeless or now
        if now - self._hopeless < (_PATIENCE if coming is None else _REPLACED_SECONDS):
            return False
        smaller = ask_of(self._spec, replace(self._cluster, nodes=capacity.nodes), self._lanes)
        if smaller == self.ask or not capacity.holds(smaller):
            return False
        self.ask, self._hopeless = smaller, None
        return True
