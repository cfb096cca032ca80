"""Which replica a shard runs on, and why: a decision alone, without a clock, a database or a cluster.

The store asks :func:`choose` inside the transaction that claims the shard, so that two shards never collide.

- A shard goes to the ready replica with the fewest shards; among those, to one whose cache holds the prefix
  that all its rows share with other shards (its *family*).
- A place that comes free goes to a shard of a family that its replica has, before the next one in line.
- The last shards wait for replicas that are being started: behind others on a busy replica they would leave
  the new one idle.
- A suspect (a shard under which an engine died) gets a replica to itself: it reserves one, and has it when
  the others there are done. It goes as far as it can from the place of its last death: to another node, else
  to another lane.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from dray.places import apart, place_of, split_place

_LOOK_AHEAD = 4
"""Shards for each replica that may go before others because of their prefix."""


class Why(StrEnum):
    """Why a shard goes to a replica, or waits."""

    LEAST_LOADED = "the replica with the fewest shards"
    FAMILY = "the replica has the prefix of its rows in its cache"
    ALONE = "a suspect has this replica to itself"
    ALL_TAKEN = "all replicas are taken"
    REPLICAS_COME = "as many replicas are being started as shards wait"
    RESERVED = "a suspect waits until the other shards on its replica are done"
    EARLY = "its process starts before there is a place for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A ready replica. ``place`` as in :mod:`dray.places`; ``load`` of its ``slots`` shards are there.

    ``reserved`` is the number of the suspect that is to have it alone, None where there is none. ``families``
    are those of the shards that it has, and of the last one that it had.
    """

    name: str
    place: str | None
    slots: int
    load: int
    reserved: int | None = None
    families: frozenset[int] = frozenset()


class Ready(NamedTuple):
    """A ready replica, as the store has it; ``family`` is that of the last shard that it had.

    ``node`` is all of its nodes, as a place has them.
    """

    name: str
    node: str | None
    slots: int
    reserved: int | None
    family: int


def views(
    replicas: Iterable[Ready],
    *,
    leased: Iterable[tuple[str | None, int, int]],
    suspects: Collection[int],
) -> list[ReplicaView]:
    """Ready replicas with their loads.

    ``leased`` has the replica and the family of shards that are on one, and how many are alike; ``suspects``
    the numbers of those that are open. A reservation ends with the shard's suspicion.
    """
    loads: Counter[str | None] = Counter()
    families: defaultdict[str | None, set[int]] = defaultdict(set)
    for name, family, count in leased:
        loads[name] += count
        families[name].add(family)
    return [
        ReplicaView(
            name=one.name,
            place=place_of(one.node, one.name),
            slots=one.slots,
            load=loads[one.name],
            reserved=one.reserved if one.reserved in suspects else None,
            families=frozenset({one.family, *families[one.name]} - {0}),
        )
        for one in replicas
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """A shard to be placed. ``died_at`` is the place of its last engine's death, where that is known.

    ``family`` names the prefix that all its rows share with other shards, 0 for none.
    """

    number: int
    suspect: bool = False
    died_at: str | None = None
    family: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """``waiting`` shards that no replica has, and ``coming`` replicas that are being started."""

    waiting: int
    coming: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``replica`` to run on now, None to wait; ``reserve``: the replica that a suspect is to have alone."""

    replica: str | None
    why: Why
    reserve: str | None = None


def choose(shard: ShardView, replicas: Sequence[ReplicaView], backlog: Callable[[], Backlog]) -> Choice:
    """A replica for a shard. ``backlog`` is asked only when each replica has work already."""
    open_ones = [one for one in replicas if one.reserved in (None, shard.number)]
    return _alone(shard, open_ones) if shard.suspect else _shared(shard, open_ones, backlog)


def _shared(shard: ShardView, open_ones: Sequence[ReplicaView], backlog: Callable[[], Backlog]) -> Choice:
    free = [one for one in open_ones if one.load < one.slots]
    if not free:
        return Choice(replica=None, why=Why.ALL_TAKEN)
    best = min(free, key=lambda one: (one.load, not _knows(one, shard), one.name))
    if best.load:
        left = backlog()
        if 0 < left.waiting <= left.coming:
            return Choice(replica=None, why=Why.REPLICAS_COME)
    return Choice(replica=best.name, why=Why.FAMILY if _knows(best, shard) else Why.LEAST_LOADED)


def _knows(replica: ReplicaView, shard: ShardView) -> bool:
    """Whether the replica's cache holds the prefix of the shard's rows."""
    return bool(shard.family) and shard.family in replica.families


def _alone(shard: ShardView, open_ones: Sequence[ReplicaView]) -> Choice:
    """Distance from the last death goes before a reservation that is there already."""
    if not open_ones:
        return Choice(replica=None, why=Why.ALL_TAKEN)

    def rank(one: ReplicaView) -> tuple[int, bool, int, str]:
        return nearness(one.place, shard.died_at), one.reserved != shard.number, one.load, one.name

    best = min(open_ones, key=rank)
    if best.load:
        return Choice(replica=None, why=Why.RESERVED, reserve=best.name)
    return Choice(replica=best.name, why=Why.ALONE, reserve=best.name)


def nearness(place: str | None, other: str | None) -> int:
    """0 on another node, 1 in another lane of the node, 2 at the same place; 0 where one is not known.

    Replicas on several nodes are on others only where they share none: a shared one may be at fault.
    """
    if place is None or other is None:
        return 0
    (node, lane), (other_node, other_lane) = split_place(place), split_place(other)
    here, there = set(apart(node)), set(apart(other_node))
    if here.isdisjoint(there):
        return 0
    return 2 if here == there and lane == other_lane else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A shard whose task is to start, and why now."""

    number: int
    why: Why


def starts(
    waiting: Sequence[ShardView],
    asking: Sequence[ShardView],
    replicas: Sequence[ReplicaView],
    *,
    coming: int,
    ahead: int,
    room: int,
) -> list[Start]:
    """The shards whose tasks are to start: those with a place on a replica, and ``ahead`` more.

    ``waiting`` shards are in the order in which they are to run. Tasks of the shards in ``asking`` run, and
    have no replica yet: they are given their places first. ``ahead`` tasks wait beside them, for their
    processes take seconds to start. ``coming`` replicas are being started. At most ``room`` tasks start,
    besides those of suspects that a replica is kept free for: the others may wait for that replica.
    """
    places = _Places(replicas, Backlog(waiting=len(waiting) + len(asking), coming=coming))
    spare = ahead - sum(places.take(shard) is None for shard in asking)
    found: list[Start] = []
    for shard in sorted(in_line(waiting, replicas), key=lambda one: one.number not in places.awaited):
        awaited = shard.number in places.awaited
        if len(found) >= room and not awaited:
            break
        why = places.take(shard)
        if why is None and not awaited:
            if spare <= 0 and not shard.suspect:
                break
            if spare <= 0:
                continue
            spare -= 1
        found.append(Start(number=shard.number, why=why or Why.EARLY))
    return found


def with_place(asking: Sequence[ShardView], replicas: Sequence[ReplicaView], backlog: Backlog) -> list[int]:
    """The shards in ``asking`` for which there is a place now, where each takes its own in turn."""
    places = _Places(replicas, backlog)
    return [shard.number for shard in asking if places.take(shard) is not None]


def in_line(waiting: Sequence[ShardView], replicas: Sequence[ReplicaView]) -> list[ShardView]:
    """The shards that wait, those before that a replica with a free place has the prefix of.

    Only the next few may go before others: long answers are to begin early. Suspects stay in front.
    """
    cached = {family for one in replicas if one.load < one.slots for family in one.families}
    first = [shard for shard in waiting if shard.suspect]
    rest = [shard for shard in waiting if not shard.suspect]
    near = {shard.number for shard in rest[: _LOOK_AHEAD * len(replicas)] if shard.family in cached}
    return [*first, *sorted(rest, key=lambda one: one.number not in near)] if near else list(waiting)


class _Places:
    """The places on replicas, as they fill with the shards that take them in turn."""

    def __init__(self, replicas: Sequence[ReplicaView], backlog: Backlog) -> None:
        self._replicas = {one.name: one for one in replicas}
        self._backlog = backlog
        self.awaited = {one.reserved for one in replicas if one.reserved is not None}

    def take(self, shard: ShardView) -> Why | None:
        """Take a place for the shard; None where there is none."""
        choice = choose(shard, list(self._replicas.values()), lambda: self._backlog)
        if choice.reserve is not None:
            self._change(choice.reserve, reserved=shard.number)
        if choice.replica is None:
            return None
        taken = self._replicas[choice.replica]
        families = taken.families | {shard.family} if shard.family else taken.families
        self._change(choice.replica, load=taken.load + 1, families=families)
        self._backlog = replace(self._backlog, waiting=self._backlog.waiting - 1)
        return choice.why

    def _change(self, name: str, **changes: Any) -> None:
        self._replicas[name] = replace(self._replicas[name], **changes)
