"""Places: a replica and its successors on one node, where a device or a machine may be at fault.

A replica's name is ``PREFIX/replica-N``, and ``~G`` behind that for its G-th successor; ``replica-N`` is its
lane. A place is written ``NODE LANE``: neither has a space. Of a replica on several nodes, NODE is all of
them, that of its process first, with ``+`` between them; budgets are those of one node.
"""

from __future__ import annotations

from collections.abc import Sequence


def replica_name(prefix: str, lane: int, generation: int = 0) -> str:
    """The name of a replica: ``lane`` counts from 0, ``generation`` the replicas before it in the lane."""
    return f"{prefix}/replica-{lane}" + (f"~{generation}" if generation else "")


def short_name(name: str) -> str:
    """The name without its job: ``replica-N``, or ``replica-N~G``."""
    return name.rsplit("/", 1)[-1]


def is_successor(name: str) -> bool:
    """Whether another replica was in the lane before."""
    return "~" in name


def first_of(name: str) -> str:
    """The name of the first replica in its lane, the same for all that follow it there in one run."""
    return name.partition("~")[0]


def lane_of(name: str) -> str:
    """What people call a replica and its successors: ``replica-N``."""
    return short_name(first_of(name))


def joined(nodes: Sequence[str]) -> str | None:
    """The nodes of a replica as a place has them; None where none is known."""
    return "+".join(nodes) or None


def apart(node: str | None) -> tuple[str, ...]:
    """The nodes that :func:`joined` put together."""
    return tuple(node.split("+")) if node else ()


def place_of(node: str | None, replica: str | None) -> str | None:
    """Where a replica of this name ran; None where its node, or its :func:`joined` nodes, is not known."""
    return None if node is None else f"{node} {lane_of(replica or '')}"


def split_place(place: str) -> tuple[str, str]:
    """The node and the lane of a place; the lane is empty for a whole node."""
    node, _, lane = place.partition(" ")
    return node, lane
