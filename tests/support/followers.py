"""Processes of a replica on several nodes, by the nodes that they are on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

import psutil

LEADER, FOLLOWER = "ray::Replica", "ray::EnginePart"
"""How Ray titles their processes: by the actor's class, or by the class and the method that runs."""


def processes_on(nodes: Collection[str], titled: str) -> dict[str, psutil.Process]:
    """Those with this title on these nodes of Ray, by the node's id."""
    return {node: process for node, process in _all(titled) if node in nodes}


def _all(titled: str) -> Iterator[tuple[str, psutil.Process]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            parent = process.parent()
            if parent is not None and " ".join(process.cmdline()).startswith(titled):
                ids = [one for one in parent.cmdline() if one.startswith("--node_id=")]
                yield from ((one.removeprefix("--node_id="), process) for one in ids)
