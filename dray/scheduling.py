"""Which replica a shard runs on, and why: a decision alone, without a clock, a database or a cluster.

The store asks :func:`choose` inside the transaction that claims the shard, so that two shards never collide.

- A shard goes to the ready replica with the fewest shards.
- The last shards wait for replicas that are being started: behind others on a busy replica they would leave
  the new one idle.
- A suspect (a shard under which an engine died) gets a replica to itself: it reserves one, and has it when
  the others there are done. It goes as far as it can from the place of its last death: to another node, else
  to another lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dray.places import split_place


class Why(StrEnum):
    """Why a shard goes to a replica, or waits."""

    LEAST_LOADED = "the replica with the fewest shards"
    ALONE = "a suspect has this replica to itself"
    ALL_TAKEN = "all replicas are taken"
    REPLICAS_COME = "as many replicas are being started as shards wait"
    RESERVED = "a suspect waits until the other shards on its replica are done"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A ready replica. ``place`` as in :mod:`dray.places`; ``load`` of its ``slots`` shards are there.

    ``reserved`` is the number of the suspect that is to have it alone, None where there is none.
    """

    name: str
    place: str | None
    slots: int
    load: int
    reserved: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """A shard to be placed. ``died_at`` is the place of its last engine's death, where that is known."""

    number: int
    suspect: bool = False
    died_at: str | None = None


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
    return _alone(shard, open_ones) if shard.suspect else _shared(open_ones, backlog)


def _shared(open_ones: Sequence[ReplicaView], backlog: Callable[[], Backlog]) -> Choice:
    free = [one for one in open_ones if one.load < one.slots]
    if not free:
        return Choice(replica=None, why=Why.ALL_TAKEN)
    best = min(free, key=lambda one: (one.load, one.name))
    if best.load:
        left = backlog()
        if 0 < left.waiting <= left.coming:
            return Choice(replica=None, why=Why.REPLICAS_COME)
    return Choice(replica=best.name, why=Why.LEAST_LOADED)


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
    """0 on another node, 1 in another lane of the node, 2 at the same place; 0 where one is not known."""
    if place is None or other is None:
        return 0
    (node, lane), (other_node, other_lane) = split_place(place), split_place(other)
    return 0 if node != other_node else 1 if lane != other_lane else 2
