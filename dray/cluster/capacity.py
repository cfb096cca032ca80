"""What a cluster's nodes have now, and what of it is free."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dray.cluster.asking import ReplicaResources, has_gpus
from dray.cluster.base import STABLE_SHARE, Node
from dray.cluster.ray_nodes import live_nodes, marked
from dray.cluster.ray_private import draining, free_resources, refused_by_autoscaler

_NEARLY = 1e-6  # sums of parts of a GPU are not exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a live node has, and what of it is free."""

    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: float

    def holds(self, ask: ReplicaResources) -> bool:
        """Whether there is room for it, or for its part, on the node when nothing else runs there."""
        return ask.fits(self.cpus, self.gpus)

    def takes(self, ask: ReplicaResources) -> bool:
        """Whether there is room for it now."""
        return self.has_enough(ask) and has_gpus(self.gpus, self.free_gpus, ask.gpus)

    def has_enough(self, ask: ReplicaResources) -> bool:
        """Whether so much is free in all, be it in parts of several GPUs that no replica can use together."""
        return ask.fits(self.free_cpus, self.free_gpus)

    def taken(self, ask: ReplicaResources) -> int:
        """How many such replicas, or parts, what is taken of the node could be at most."""
        used = (self.cpus - self.free_cpus, ask.cpus), (self.gpus - self.free_gpus, ask.gpus)
        return int(min((have / asked for have, asked in used if asked), default=0.0) + _NEARLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A cluster as it is now. ``refused`` holds what its autoscaler says that it can never have.

    Nodes that are being drained hold and take no replica.
    """

    nodes: tuple[Node, ...]
    rooms: tuple[Room, ...]
    refused: tuple[tuple[float, float], ...] = ()

    def without(self, nodes: Collection[str]) -> Capacity:
        """The cluster without these nodes."""
        kept = [pair for pair in zip(self.nodes, self.rooms, strict=True) if pair[0].node_id not in nodes]
        return replace(self, nodes=tuple(node for node, _ in kept), rooms=tuple(room for _, room in kept))

    @property
    def open_rooms(self) -> tuple[Room, ...]:
        """The rooms of nodes on which Ray starts something new."""
        return tuple(room for node, room in zip(self.nodes, self.rooms, strict=True) if not node.draining)

    def drained(self, ask: ReplicaResources) -> int:
        """How many nodes would hold a replica, or its part, and are being drained."""
        pairs = zip(self.nodes, self.rooms, strict=True)
        return sum(node.draining and room.holds(ask) for node, room in pairs)

    def holds(self, ask: ReplicaResources) -> bool:
        """Whether there is room for a replica when nothing else runs."""
        return sum(room.holds(ask) for room in self.open_rooms) >= ask.nodes

    def takes(self, ask: ReplicaResources) -> bool:
        """Whether there is room for a replica now."""
        return sum(room.takes(ask) for room in self.open_rooms) >= ask.nodes

    def taken(self, ask: ReplicaResources) -> int:
        """How many such replicas, counted by node, what is taken now could be at most."""
        return sum(room.taken(ask) for room in self.rooms)


def capacity_now() -> Capacity:
    """Ask Ray."""
    nodes, free = marked(live_nodes()[0], draining()), free_resources()
    refused = tuple((one.get("CPU", 0.0), one.get("GPU", 0.0)) for one in refused_by_autoscaler())
    return Capacity(nodes=nodes, rooms=tuple(_room(node, free) for node in nodes), refused=refused)


def _room(node: Node, free: dict[str, dict[str, float]]) -> Room:
    left = free.get(node.node_id, {})
    return Room(
        cpus=node.cpus, gpus=node.gpus, free_cpus=left.get("CPU", 0.0), free_gpus=left.get("GPU", 0.0)
    )


def no_place_for_tasks(resource: str) -> str | None:
    """Why Ray starts no shard task: no node has any of their resource left; None where one has."""
    try:
        free = [of.get(resource, 0.0) for of in free_resources().values()]
    except Exception:  # noqa: BLE001  Ray's head may be away: others say so
        return None
    if any(amount >= STABLE_SHARE for amount in free):
        return None
    return (
        f"shard tasks find no place: each asks for {STABLE_SHARE} of the resource {resource}, "
        f"and no node has as much free"
    )
