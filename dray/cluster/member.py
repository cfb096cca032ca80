"""Whether this machine is a node of a cluster that runs: a driver of Ray's runs on one."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence

from dray.cluster.listening import listens
from dray.cluster.ray_private import FoundNode, node_ids_here, nodes_at, starts_here
from dray.errors import ConfigError

START_SECONDS = 5.0
"""For a node of this machine, where none is seen starting."""
RAYS_SECONDS = 60.0
"""For one that is: ``ray start`` takes its time with a cold disk. Ray waits as long when it joins."""

_LOOK_SECONDS = 0.5


def runs_node() -> bool:
    """Whether this machine runs a node of Ray, of whichever cluster."""
    return bool(node_ids_here())


def nodes_joined(address: str) -> Sequence[FoundNode]:
    """The nodes of the cluster at ``address`` (host:port, or ``auto``), of which this machine is one.

    None where the head does not say which it has: joining says why.

    Raises:
        ConfigError: this machine is no node of it, and none is being started; or its start takes too long.
    """
    given = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if not given.rpartition(":")[2].isdigit():  # `auto` is what runs here
        return _listed(address) if runs_node() else ()
    began = time.monotonic()
    while True:
        if here := node_ids_here():
            nodes = _listed(given) if listens(given) else ()
            if not nodes or any(one.node_id in here for one in nodes):
                return nodes
        waited = time.monotonic() - began
        if waited > START_SECONDS and (waited > RAYS_SECONDS or not starts_here(given)):
            raise ConfigError(
                f"cluster {given}: this machine is no node of it, and dray's driver runs on one: run "
                f"`ray start --address={given} --num-cpus=0 --num-gpus=0` here first, with the Ray, Python "
                "and token of its head, or run the driver on that head: "
                "`dray cluster submit http://HOST:8265 -- run ...`"
            )
        time.sleep(_LOOK_SECONDS)


def stable_hosts(nodes: Collection[FoundNode]) -> set[str]:
    """The machines that shard tasks may run on: those of marked nodes, or the head's where none is marked."""
    return {one.host for one in nodes if one.marked} or {one.host for one in nodes if one.head}


def _listed(address: str) -> Sequence[FoundNode]:
    try:
        return nodes_at(address)
    except Exception:  # noqa: BLE001  whatever Ray's client raises: joining has an error for each
        return ()
