"""Machines of a rented cluster follow the replicas: more for those to come, none for those that left.

An autoscaler does this for clusters that have one. Here the driver's events say how many replicas there are
to be, and on which nodes they were; the provider rents and ends machines.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import Cluster
from dray.cluster.capacity import Capacity
from dray.cluster.providers.protocol import Machine, Market, Provider, ends_of
from dray.driver.capacity.rented_places import (
    REST_SECONDS,
    RentedPlaces,
    Strays,
    Surplus,
    addresses_of,
    named,
    workers,
)
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
from dray.job.options.settings import JobSettings
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
    settings: JobSettings,
) -> Iterator[list[Observer]]:
    """The observers that a driver on this cluster needs, for so many replicas that ask for so much each.

    ``tell`` takes events from another thread. A number of replicas that follows from the machines, and is
    not the user's, is no reason to rent more machines than there are.
    """
    provider = cluster.rented
    if provider is None:
        yield []
        return

    patient = chooses_market(cluster, settings.request.deadline)
    most = None if settings.replicas else max(fleet.info.machines, ask.nodes)
    with Renting(
        provider, replicas, tell, ask=ask, capacity=fleet.capacity, patient=patient, most=most
    ) as renting:
        yield [renting]


def chooses_market(cluster: Cluster, deadline: str | None) -> bool:
    """Whether the driver is to say how many replicas may be on demand: it has a deadline, and a choice."""
    provider = cluster.rented
    both = provider is not None and provider.markets >= {Market.SPOT, Market.ON_DEMAND}
    return deadline is not None and both


class Renting:
    """An observer of the driver, with a thread of its own for the provider's calls, which take seconds.

    ``ask`` is what a replica asks Ray for, ``capacity`` what Ray's nodes have, None while its head is away. A
    ``patient`` one waits for spot until the driver decides that some replicas may be on demand. It has no
    more than ``most`` machines. Use it as a context manager: at the end of the block no call is under way.
    """

    def __init__(
        self,
        provider: Provider,
        replicas: int,
        tell: Callable[[Event], None],
        *,
        ask: ReplicaResources,
        capacity: Callable[[], Capacity | None],
        patient: bool,
        most: int | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._provider = provider
        self._wanted = replicas
        self._on_demand = 0 if patient else None
        self._tell = tell
        self._capacity = capacity
        self._places = RentedPlaces(ask, provider.largest, most)
        self._strays = Strays(provider.join_seconds)
        self._surplus = Surplus()
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
            elif isinstance(event, ReplicaChanged):
                for node in event.nodes:
                    self._follow(event, node)
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
                self._look(wanted, on_demand, empty)
            except Exception as error:  # noqa: BLE001  without this thread nothing is rented or given back
                # Only dray's own messages are known to quote nothing.
                told = str(error) if isinstance(error, DrayError) else type(error).__name__
                self._tell(Warned(line=f"{self._provider.where}: {told}"))
                self._put_back(empty)

    def _put_back(self, empty: Collection[str]) -> None:
        """Nodes to give back at the next look."""
        with self._changed:
            self._empty |= {node for node in empty if not self._on[node]}

    def _look(self, wanted: int, on_demand: int | None, empty: Collection[str]) -> None:
        """Let go of what is not used, and ask for what is missing."""
        capacity = self._capacity()
        if capacity is None:  # what there is cannot be told from what is missing
            self._put_back(empty)
            return
        if empty:
            self._give_back(empty, capacity)
        there = workers(self._provider.nodes())
        self._places.learn(there, capacity)
        left = self._without_strays(there, capacity)
        left = self._without_surplus(left, capacity, wanted)
        if self._strays.allow_more():
            self._rent(wanted, on_demand, left)

    def _rent(self, replicas: int, on_demand: int | None, machines: Sequence[Machine]) -> None:
        """Have machines for so many replicas; ``on_demand`` of them need not wait for spot.

        Ends none: there may be more than the job needs yet.
        """
        while True:
            missing = self._places.missing(machines, replicas, on_demand)
            if missing is None:
                return
            grant = self._provider.desire(missing.machines, missing.on_demand)
            if grant.reasons and grant.reasons != self._told:
                told = f"{grant.short} of {missing.machines} machines cannot be had, and are asked for again"
                self._tell(Warned(line=f"{self._provider.where}: {told}: {'; '.join(grant.reasons)}"))
            self._told = grant.reasons
            if grant.short or len(grant.machines) <= len(machines):
                return
            machines = grant.machines  # they may be smaller than the largest

    def _without_strays(self, machines: Sequence[Machine], capacity: Capacity) -> Sequence[Machine]:
        """The machines less those that Ray does not get: they end, and others are asked for."""
        late, ended = self._strays.look(machines, capacity)
        if not late and not ended:
            return machines
        patience = self._strays.patience
        what = [f"{named(late)} did not join Ray within {patience:.0f} s, or left it: ended"] if late else []
        why = ends_of(self._provider) if ended else {}
        what += [f"{', '.join(why.get(one, one) for one in ended)} ended before joining Ray"] if ended else []
        if not self._strays.allow_more():
            count, rest = self._strays.in_a_row, REST_SECONDS / 60
            what.append(f"{count} in a row did so, and dray asks for no more machines for {rest:.0f} min")
        told = f"{'; '.join(what)}. The machine's console may say why"
        self._tell(Warned(line=f"{self._provider.where}: {told}"))
        if late:
            self._provider.drain([one.name for one in late])
        return [one for one in machines if one not in late]

    def _without_surplus(self, machines: Sequence[Machine], capacity: Capacity, wanted: int) -> list[Machine]:
        """The machines less those that came when the job needed fewer again, and got no replica."""

        def spare(those: Collection[Machine]) -> bool:
            return self._places.replicas_in([one for one in machines if one not in those]) >= wanted

        with self._changed:
            used = [node for node, names in self._on.items() if names]
        found = self._surplus.look(machines, capacity, used=used, spare=spare)
        if found:
            self._provider.drain([one.name for one in found])
            self._tell(
                Told(line=f"{self._provider.where}: gave back {named(found)}, which the job no longer needs")
            )
        return [one for one in machines if one not in found]

    def _give_back(self, nodes: Collection[str], capacity: Capacity) -> None:
        addresses = addresses_of(nodes, capacity)
        idle = [one for one in workers(self._provider.nodes()) if one.address in addresses]
        if idle:
            self._provider.drain([one.name for one in idle])
            self._tell(Told(line=f"{self._provider.where}: gave back {named(idle)}"))
