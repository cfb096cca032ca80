"""What became of a replica's node: asked when a replica does not answer any more.

The first sign of a lost node is an actor that is unreachable. Ray takes 15 s to a minute to call the node
dead, so its daemon's port is tried as well: where it takes no connection,
the node is gone, or as good as.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass

from dray.cluster.base import Node
from dray.cluster.ray_nodes import live_nodes
from dray.cluster.ray_private import ActorDeath, death_of, draining

_CONNECT_SECONDS = 1.0

_AWAY_SECONDS = 60.0
"""For this long a node that took no connections is not tried again: Ray calls it dead by then, if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """``alive`` is None where neither Ray nor the daemon's port settles it.

    ``node`` is the one that they are about: of a replica on several, one that went, or is being drained.
    """

    alive: bool | None
    draining: bool
    preempted: bool
    oom: bool
    node: str | None = None


class Unreachable:
    """Nodes that took no connections a moment ago. One that a broken network hid is tried again later."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, node_id: str) -> None:
        """It took none just now, or was not there."""
        if node_id not in self:
            self._until[node_id] = time.monotonic() + _AWAY_SECONDS

    def __contains__(self, node_id: object) -> bool:
        return time.monotonic() < self._until.get(str(node_id), 0.0)


def is_gone(actor_id: str, node_id: str | None) -> bool:
    """Whether Ray knows by now that a replica is dead, or its node takes no connections."""
    death = death_of(actor_id)
    return death is not None or _alive(death, node_id, find_node(node_id)) is False


def diagnose(
    actor_id: str, node_id: str | None, others: Sequence[str], *, unreachable: Container[str]
) -> NodeFacts:
    """What is known by now: whether a replica died alone or with its node, or with one of its ``others``.

    ``unreachable`` are nodes known to take no connections: a try at each takes a second.
    """
    death = death_of(actor_id)
    node = find_node(node_id) if node_id not in unreachable else None
    leaving = draining()
    alive, about = _alive(death, node_id, node), node_id
    if alive is not False:
        gone = [one for one in others if one in unreachable or not _is_there(one)]
        alive, about = (False, gone[0]) if gone else (alive, node_id)
    drained = [one for one in (about, *others) if one in leaving]
    return NodeFacts(
        alive=alive,
        draining=bool(drained),
        preempted=death is not None and death.preempted,
        oom=death is not None and death.oom,
        node=about if alive is False or not drained else drained[0],
    )


def _is_there(node_id: str) -> bool:
    node = find_node(node_id)
    return node is not None and _listens(node)


def find_node(node_id: str | None) -> Node | None:
    """The live node of this id; None where there is none."""
    return next((node for node in live_nodes()[0] if node.node_id == node_id), None)


def _alive(death: ActorDeath | None, node_id: str | None, node: Node | None) -> bool | None:
    if node_id is None:
        return None if death is None or death.with_node is None else not death.with_node
    if node is None or (death is not None and death.with_node):
        return False
    if not _listens(node):
        return False
    return True if death is not None else None


def _listens(node: Node) -> bool:
    """Whether the node's Ray daemon takes connections."""
    try:
        socket.create_connection((node.address, node.port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
