"""Machines of a rented cluster follow the replicas: more for those to come, none for those that left.

An autoscaler does this for clusters that have one. Here the driver's events say how many replicas there are
to be, and on which nodes they were; the provider rents and ends machines.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import Cluster
from dray.cluster.capacity import Capacity
from dray.cluster.providers.protocol import Provider
from dray.driver.events import CapacityDecided, CapacityMissing, Event, Observer, ReplicaChanged
from dray.driver.fleet import Fleet
from dray.errors import DrayError
from dray.store import ReplicaState

_LOGGER = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""Between two wishes for machines that could not be had."""

_LEFT = (ReplicaState.RETIRED, ReplicaState.GONE)


@contextmanager
def rented_for(cluster: Cluster, fleet: Fleet, ask: ReplicaResources) -> Iterator[list[Observer]]:
    """The observers that a driver on this cluster needs, for replicas that ask for so much each."""
    provider = cluster.rented
    if provider is None:
        yield []
        return

    def addresses(nodes: Collection[str]) -> list[str]:
        capacity = fleet.capacity()
        return [node.address for node in capacity.nodes if node.node_id in nodes] if capacity else []

    with Renting(provider, holds=lambda: replicas_on(fleet.capacity(), ask), addresses=addresses) as renting:
        yield [renting]


def replicas_on(capacity: Capacity | None, ask: ReplicaResources) -> int:
    """How many replicas the smallest worker has room for; 1 where that is not known."""
    if capacity is None:
        return 1
    needs = ((ask.cpus, "cpus"), (ask.gpus, "gpus"))
    held = [
        min((getattr(room, name) / amount for amount, name in needs if amount), default=1.0)
        for node, room in zip(capacity.nodes, capacity.rooms, strict=True)
        if not node.stable
    ]
    return max(1, math.floor(min(held, default=1.0)))


class Renting:
    """An observer of the driver, with a thread of its own for the provider's calls, which take seconds.

    ``holds`` says how many replicas a machine has room for, ``addresses`` which address each node has. Use it
    as a context manager: at the end of the block no call is under way.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        holds: Callable[[], int],
        addresses: Callable[[Collection[str]], Collection[str]],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._provider = provider
        self._holds = holds
        self._addresses = addresses
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._wanted = 0  # replicas
        self._empty: set[str] = set()  # nodes whose last replica was given back
        self._on: defaultdict[str, set[str]] = defaultdict(set)  # replicas by node
        self._due = self._ended = False
        self._told: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="dray-renting", daemon=True)

    def __enter__(self) -> Renting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def hear(self, event: Event) -> None:
        """Note what changes, and leave the rest to the thread."""
        with self._changed:
            if isinstance(event, CapacityDecided | CapacityMissing):
                self._wanted, self._due = event.replicas, event.replicas > event.before
            elif isinstance(event, ReplicaChanged) and event.node is not None:
                self._follow(event, event.node)
            if self._due or self._empty:
                self._changed.notify()

    def _follow(self, event: ReplicaChanged, node: str) -> None:
        if event.state not in _LEFT:
            self._on[node].add(event.name)
            self._empty.discard(node)
            return
        self._on[node].discard(event.name)
        if event.state is ReplicaState.RETIRED and not self._on[node]:
            self._empty.add(node)

    def _run(self) -> None:
        missing = False
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended or self._due or self._empty, self._retry_seconds if missing else None
                )
                if self._ended:
                    return
                wanted, empty = self._wanted, set(self._empty)
                missing, self._due = missing or self._due, False
                self._empty.clear()
            try:
                if empty:
                    self._give_back(empty)
                missing = missing and self._rent(wanted)
            except DrayError as error:
                _LOGGER.warning("%s: %s", self._provider.where, error)

    def _rent(self, replicas: int) -> bool:
        """Have machines for so many replicas; whether some are missing. Never ends one."""
        machines = math.ceil(replicas / max(1, self._holds()))
        if machines <= sum(not one.head for one in self._provider.nodes()):
            return False
        grant = self._provider.desire(machines)
        if grant.reasons and grant.reasons != self._told:
            self._told = grant.reasons
            _LOGGER.warning(
                "%s: %d of %d machines cannot be had, and are asked for again: %s",
                self._provider.where, grant.short, machines, "; ".join(grant.reasons),
            )  # fmt: skip
        return grant.short > 0

    def _give_back(self, nodes: Collection[str]) -> None:
        addresses = set(self._addresses(nodes))
        names = [one.name for one in self._provider.nodes() if not one.head and one.address in addresses]
        if names:
            self._provider.drain(names)
            _LOGGER.info("%s: gave back %s", self._provider.where, ", ".join(names))
