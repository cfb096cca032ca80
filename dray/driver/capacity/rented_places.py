"""How many replicas the machines of a rented cluster hold, and which of them Ray does not have.

A machine counts with the room of its Ray node. One that is still coming counts with what others of its kind
have had, or with the GPUs that its provider knows of its kind.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from dray.cluster.asking import ReplicaResources, replicas_on, replicas_over
from dray.cluster.capacity import Capacity, Room
from dray.cluster.providers.protocol import Machine, Market, Phase


@dataclass(frozen=True, slots=True)
class Missing:
    """Machines to ask for, all of a cluster's workers together; ``on_demand`` as in `Provider.desire`."""

    machines: int
    on_demand: int | None


class RentedPlaces:
    """Places for replicas that ask for ``ask`` each. Remembers what machines of each kind had room for.

    ``largest``: GPUs of a machine that may be asked for. There may be ``most`` machines, or any number.
    """

    def __init__(self, ask: ReplicaResources, largest: float | None, most: int | None) -> None:
        self._ask = ask
        self._largest = largest
        self._most = most
        self._known: dict[str, int] = {}

    def learn(self, machines: Iterable[Machine], capacity: Capacity) -> None:
        """Note what those that are in Ray have room for."""
        for machine, room in in_ray(machines, capacity):
            self._known[machine.kind] = held(room, self._ask)

    def of(self, machine: Machine) -> int:
        """Replicas, or parts of them, that the machine has room for, once it is in Ray."""
        known = self._known.get(machine.kind)
        return self._on(machine.gpus) if known is None else known

    def replicas_in(self, machines: Iterable[Machine]) -> int:
        """Replicas that these machines have room for together."""
        return replicas_over([self.of(one) for one in machines], self._ask.nodes)

    def missing(self, machines: Collection[Machine], replicas: int, on_demand: int | None) -> Missing | None:
        """What to ask for beside these machines; None where they suffice for so many replicas.

        The machines to come may be the largest there are. Where they are smaller, the next look asks again:
        a machine too few costs a minute, and one too many its price for as long as the job runs.
        """
        short = self._short(machines, replicas)
        if self._most is not None:
            short = min(short, self._most - len(machines))
        if short <= 0:
            return None
        dear = [one for one in machines if one.market is Market.ON_DEMAND]
        allowed = None if on_demand is None else len(dear) + max(0, self._short(dear, on_demand))
        return Missing(machines=len(machines) + short, on_demand=allowed)

    def _short(self, machines: Iterable[Machine], replicas: int) -> int:
        """Machines that so many replicas need beside these: each has at most one part of a replica."""
        parts = replicas * self._ask.nodes - sum(min(self.of(one), replicas) for one in machines)
        most = min(max([self._on(self._largest), *self._known.values()]), max(replicas, 1))
        return math.ceil(parts / most)

    def _on(self, gpus: float | None) -> int:
        """Replicas on a machine of which nothing but its GPUs is known; one where those are not."""
        if not gpus or not self._ask.gpus:
            return 1
        return max(1, replicas_on(gpus, self._ask.gpus))


def held(room: Room, ask: ReplicaResources) -> int:
    """Replicas that a node has room for; at least one, so that no machine is asked for again and again."""
    counts = [math.floor(room.cpus / ask.cpus + 1e-6)] if ask.cpus else []
    counts += [replicas_on(room.gpus, ask.gpus)] if ask.gpus else []
    return max(1, min(counts, default=1))


def in_ray(machines: Iterable[Machine], capacity: Capacity) -> list[tuple[Machine, Room]]:
    """Machines that are live nodes of Ray, with what they have."""
    rooms = {node.address: room for node, room in zip(capacity.nodes, capacity.rooms, strict=True)}
    return [(one, rooms[one.address]) for one in machines if one.address in rooms]


def workers(machines: Iterable[Machine]) -> list[Machine]:
    """The machines that hold replicas, or will."""
    return [one for one in machines if not one.head and one.phase is not Phase.LEAVING]


MOST_STRAYS = 3
"""Machines in a row that Ray did not get: the next one would most likely not join either."""

REST_SECONDS = 1800.0
"""After so many in a row, before machines are asked for again: each costs until it ends."""


@dataclass(slots=True)
class Strays:
    """Machines that Ray does not have: they never came up or never joined, or their Ray daemon died.

    Each costs from when it is there. ``patience``: seconds that it has. ``in_a_row``: machines lost so since
    one joined.
    """

    patience: float
    clock: Callable[[], float] = time.monotonic
    in_a_row: int = 0
    _last: float = 0.0
    _since: dict[str, float] = field(default_factory=dict)
    _joined: set[str] = field(default_factory=set)

    def look(self, machines: Collection[Machine], capacity: Capacity) -> tuple[list[Machine], list[str]]:
        """Machines whose time is over, and the names of those that ended before they joined; each once."""
        now, here = self.clock(), {one.name for one, _ in in_ray(machines, capacity)}
        if here - self._joined:
            self._joined |= here
            self.in_a_row = 0
        names = {one.name for one in machines}
        ended = [name for name in self._since if name not in names | self._joined]
        away = [one.name for one in machines if one.name not in here]
        self._since = {name: self._since.get(name, now) for name in away}
        overdue = {name for name, since in self._since.items() if now - since >= self.patience}
        late = [one for one in machines if one.name in overdue]
        for one in late:
            del self._since[one.name]
        if late or ended:
            self.in_a_row += len(late) + len(ended)
            self._last = now
        return late, ended

    def allow_more(self) -> bool:
        """Whether machines may be asked for: not while several in a row did not join."""
        return self.in_a_row < MOST_STRAYS or self.clock() - self._last >= REST_SECONDS


SPARE_SECONDS = 120.0
"""A machine that was asked for has so long in Ray to get a replica: one may be on its way there."""


@dataclass(slots=True)
class Surplus:
    """Machines that came when they were no longer needed: in Ray without a replica, and more than suffice.

    Those that were there at the first look stay: their user bought them.
    """

    _bought: frozenset[str] | None = None
    _since: dict[str, float] = field(default_factory=dict)

    def look(
        self,
        machines: Collection[Machine],
        capacity: Capacity,
        *,
        used: Collection[str],
        spare: Callable[[Collection[Machine]], bool],
    ) -> list[Machine]:
        """Machines to give back. ``used`` nodes have replicas; ``spare``: whether the job can do without."""
        now = time.monotonic()
        if self._bought is None:
            self._bought = frozenset(one.name for one in machines)
        addresses = addresses_of(used, capacity)
        empty = [one for one, _ in in_ray(machines, capacity) if one.address not in addresses]
        empty = [one for one in empty if one.name not in self._bought]
        self._since = {one.name: self._since.get(one.name, now) for one in empty}
        found: list[Machine] = []
        for one in empty:
            if now - self._since[one.name] >= SPARE_SECONDS and spare([*found, one]):
                found.append(one)
        return found


def named(machines: Iterable[Machine]) -> str:
    """The machines' names, for a line of the log."""
    return ", ".join(str(one) for one in machines)


def addresses_of(nodes: Collection[str], capacity: Capacity) -> set[str]:
    """The addresses of these nodes of Ray, given by their ids."""
    return {node.address for node in capacity.nodes if node.node_id in nodes}
