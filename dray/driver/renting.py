"""Machines of a rented cluster follow the replicas: more for those to come, none for those that left.

An autoscaler does this for clusters that have one. Here the driver's events say how many replicas there are
to be, and on which nodes they were; the provider rents and ends machines.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import Cluster
from dray.cluster.capacity import Capacity, Room
from dray.cluster.providers.protocol import Market, Provider
from dray.driver.events import (
    CapacityDecided,
    CapacityMissing,
    Event,
    MarketDecided,
    Observer,
    ReplicaChanged,
    Told,
    Warned,
)
from dray.driver.fleet import Fleet
from dray.errors import DrayError
from dray.store import ReplicaState

LOOK_SECONDS = 60.0
"""Between two looks whether machines are missing: a spot machine went, or could not be had so far."""


@contextmanager
def rented_for(
    cluster: Cluster,
    fleet: Fleet,
    ask: ReplicaResources,
    replicas: int,
    tell: Callable[[Event], None],
    *,
    patient: bool,
) -> Iterator[list[Observer]]:
    """The observers that a driver on this cluster needs, for so many replicas that ask for so much each.

    ``tell`` takes events from another thread. ``patient`` is as in :class:`Renting`.
    """
    provider = cluster.rented
    if provider is None:
        yield []
        return

    def addresses(nodes: Collection[str]) -> list[str]:
        capacity = fleet.capacity()
        return [node.address for node in capacity.nodes if node.node_id in nodes] if capacity else []

    def holds() -> int:
        return replicas_on(fleet.capacity(), ask)

    with Renting(provider, replicas, tell, holds=holds, addresses=addresses, patient=patient) as renting:
        yield [renting]


def chooses_market(cluster: Cluster, deadline: str | None) -> bool:
    """Whether the driver is to say how many replicas may be on demand: it has a deadline, and a choice."""
    provider = cluster.rented
    both = provider is not None and provider.markets >= {Market.SPOT, Market.ON_DEMAND}
    return deadline is not None and both


def replicas_on(capacity: Capacity | None, ask: ReplicaResources) -> int:
    """How many replicas the smallest machine that holds any has room for; 1 where that is not known."""
    rooms = [] if capacity is None else [room for room in capacity.rooms if room.holds(ask)]
    return min((max(1, _held(room, ask)) for room in rooms), default=1)


def _held(room: Room, ask: ReplicaResources) -> int:
    shares = [room.cpus / ask.cpus] if ask.cpus else []
    shares += [room.gpus / ask.gpus] if ask.gpus else []
    return math.floor(min(shares, default=1.0) + 1e-6)


class Renting:
    """An observer of the driver, with a thread of its own for the provider's calls, which take seconds.

    ``holds`` says how many replicas a machine has room for, ``addresses`` which address each node has. A
    ``patient`` one waits for spot until the driver decides that some replicas may be on demand. Use it as a
    context manager: at the end of the block no call is under way.
    """

    def __init__(
        self,
        provider: Provider,
        replicas: int,
        tell: Callable[[Event], None],
        *,
        holds: Callable[[], int],
        addresses: Callable[[Collection[str]], Collection[str]],
        patient: bool = False,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._provider = provider
        self._wanted = replicas
        self._on_demand = 0 if patient else None
        self._tell = tell
        self._holds = holds
        self._addresses = addresses
        self._look_seconds = look_seconds
        self._changed = threading.Condition()
        self._on: defaultdict[str, set[str]] = defaultdict(set)  # replicas by node
        self._empty: set[str] = set()  # nodes whose last replica was given back
        self._news = self._ended = False
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
                self._wanted, self._news = event.replicas, True
            elif isinstance(event, MarketDecided):
                self._on_demand, self._news = event.on_demand, True
            elif isinstance(event, ReplicaChanged) and event.node is not None:
                self._follow(event, event.node)
            if self._news:
                self._changed.notify()

    def _follow(self, event: ReplicaChanged, node: str) -> None:
        if event.state is not ReplicaState.GONE:
            self._on[node].add(event.name)
            self._empty.discard(node)
            return
        self._on[node].discard(event.name)
        if event.retired and not self._on[node]:
            self._empty.add(node)
            self._news = True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._news, self._look_seconds)
                if self._ended:
                    return
                wanted, on_demand = self._wanted, self._on_demand
                empty, self._news = self._empty, False
                self._empty = set()
            try:
                self._give_back(empty)
                self._rent(wanted, on_demand)
            except DrayError as error:
                self._tell(Warned(line=f"{self._provider.where}: {error}"))
                with self._changed:
                    self._empty |= {node for node in empty if not self._on[node]}

    def _rent(self, replicas: int, on_demand: int | None) -> None:
        """Have machines for so many replicas; ``on_demand`` of them need not wait for spot.

        Ends none: there may be more than the job needs yet.
        """
        machines = math.ceil(replicas / self._holds())
        if machines <= sum(not one.head for one in self._provider.nodes()):
            return
        dear = None if on_demand is None else math.ceil(on_demand / self._holds())
        grant = self._provider.desire(machines, dear)
        if grant.reasons and grant.reasons != self._told:
            told = f"{grant.short} of {machines} machines cannot be had, and are asked for again"
            self._tell(Warned(line=f"{self._provider.where}: {told}: {'; '.join(grant.reasons)}"))
        self._told = grant.reasons

    def _give_back(self, nodes: Collection[str]) -> None:
        addresses = set(self._addresses(nodes)) if nodes else set()
        names = [
            one.name
            for one in (self._provider.nodes() if addresses else ())
            if not one.head and one.address in addresses
        ]
        if names:
            self._provider.drain(names)
            self._tell(Told(line=f"{self._provider.where}: gave back {', '.join(names)}"))
