"""Places: a replica and its successors on one node, where a device or a machine may be at fault.

A replica's name is ``PREFIX/replica-N``, and ``~G`` behind that for its G-th successor; ``replica-N`` is its
lane. A place is written ``NODE LANE``: neither has a space.
"""

from __future__ import annotations


def lane_of(name: str) -> str:
    """What people call a replica and its successors: ``replica-N``."""
    return name.rsplit("/", 1)[-1].partition("~")[0]


def place_of(node: str | None, replica: str | None) -> str | None:
    """Where a replica of this name ran; None where its node is not known."""
    return None if node is None else f"{node} {lane_of(replica or '')}"


def split_place(place: str) -> tuple[str, str]:
    """The node and the lane of a place; the lane is empty for a whole node."""
    node, _, lane = place.partition(" ")
    return node, lane
