"""The nodes of the Ray cluster that this process has joined."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from dray.cluster.base import INSTANCE_LABELS, STABLE_RESOURCE, Node
from dray.cluster.providers.protocol import Access, AsksAhead, Phase, Provider, ends_of
from dray.cluster.ray_private import draining
from dray.errors import ClusterError

_LOOK_SECONDS = 1.0


def await_workers(
    provider: Provider, access: Access, look: Callable[[], None]
) -> tuple[tuple[Node, ...], str]:
    """The nodes, once there are as many workers as the cluster has at least; ``look`` may end the wait.

    Raises:
        ClusterError: they have not come in time.
    """
    until = time.monotonic() + access.patience
    while True:
        nodes, resource = live_nodes()
        workers = sum(1 for node in nodes if node.cpus or node.gpus)  # neither a rented head nor the driver
        if workers >= access.minimum:
            return nodes, resource
        look()
        if time.monotonic() > until:
            raise ClusterError(_too_few(provider, access, workers))
        time.sleep(_LOOK_SECONDS)


def _too_few(provider: Provider, access: Access, workers: int) -> str:
    rented = ", ".join(str(one) for one in provider.nodes() if not one.head) or "none"
    joined = f"{workers} of at least {access.minimum} workers joined Ray in {access.patience:.0f} s"
    gone = ", ".join(ends_of(provider).values())
    ended = f"; ended: {gone}" if gone else ""
    advice = "their consoles say why, or ask for fewer workers"
    return f"{provider.where}: {joined} (machines that are there or coming: {rented}{ended}); {advice}"


def unjoined(provider: Provider, nodes: Sequence[Node]) -> tuple[float | None, ...]:
    """GPUs of each worker that is rented or asked for, and that was none of these nodes before this call.

    Raises:
        ClusterError, ConfigError: the provider does not say.
    """
    there = {node.address for node in nodes}
    rented = [one for one in provider.nodes() if not one.head and one.phase is not Phase.LEAVING]
    asked = provider.asked() if isinstance(provider, AsksAhead) else ()
    return (*(one.gpus for one in rented if one.address not in there), *asked[len(rented) :])


def live_nodes() -> tuple[tuple[Node, ...], str]:
    """The nodes that live now, and the resource that marks stable ones: the head's own where none is."""
    import ray

    return _nodes(ray.nodes())


def leaving() -> Collection[str]:
    """The nodes that are being drained; none where Ray's head does not say: later looks ask again."""
    try:
        return draining()
    except Exception:  # noqa: BLE001  whatever its client raises: a job does without the answer
        return ()


def marked(nodes: Sequence[Node], leaving: Collection[str]) -> tuple[Node, ...]:
    """The nodes, those of ``leaving`` as such that are being drained."""
    return tuple(replace(node, draining=node.node_id in leaving) for node in nodes)


def _instance(node: dict[str, Any]) -> str:
    """The type of instance of a node, as a label of Ray's says it."""
    labels = node.get("Labels") or {}
    return next((labels[name] for name in INSTANCE_LABELS if labels.get(name)), "")


def _nodes(listed: list[dict[str, Any]]) -> tuple[tuple[Node, ...], str]:
    alive = [node for node in listed if node["Alive"]]
    marked = any(STABLE_RESOURCE in node["Resources"] for node in alive)
    resource = STABLE_RESOURCE if marked else "node:__internal_head__"
    nodes = tuple(
        Node(
            node_id=node["NodeID"],
            host=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            stable=resource in node["Resources"],
            address=node.get("NodeManagerAddress", ""),
            port=node.get("NodeManagerPort", 0),
            memory=node["Resources"].get("memory", 0.0),
            instance=_instance(node),
            spot=(node.get("Labels") or {}).get("ray.io/market-type") == "spot",
        )
        for node in alive
    )
    return nodes, resource
