"""Where Ray runs this actor. Ray is imported on the call."""

from __future__ import annotations

from typing import Any


def own_node() -> str:
    """The id of its node."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node


def own_group() -> Any:
    """Its placement group. For the thread that Ray runs the actor's constructor in."""
    import ray

    return ray.util.get_current_placement_group()
