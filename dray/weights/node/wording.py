"""How the fetch of a model is reported to the user."""

from __future__ import annotations

from collections.abc import Sequence

from dray.weights.node.local import ModelProgress


def progress_line(nodes: Sequence[ModelProgress]) -> str:
    """One line: bytes, rate, share, and where they lie.

    >>> from dray.weights.node.local import ModelProgress
    >>> one = dict(node="a", size=16_000_000_000, root="/dev/shm/dray-0", memory=True, began=10.0)
    >>> progress_line([ModelProgress(ready=4_000_000_000, moved=12.0, **one)])
    'weights: 4.00 of 16.00 GB (25%) · 2.00 GB/s · in memory'
    """
    ready, size = sum(node.ready for node in nodes), sum(node.size for node in nodes)
    began, moved = min(node.began for node in nodes), max(node.moved for node in nodes)
    parts = [f"weights: {ready / 1e9:.2f} of {size / 1e9:.2f} GB ({100 * ready // max(size, 1)}%)"]
    if moved > began:
        parts.append(f"{ready / (moved - began) / 1e9:.2f} GB/s")
    if len(nodes) > 1:
        parts.append(f"{len(nodes)} nodes")
    peers = sum(node.from_peers or 0 for node in nodes)
    if peers:
        parts.append(f"{peers / 1e9:.2f} GB from other nodes")
    disks = sorted({node.root for node in nodes if not node.memory})
    parts.append(
        f"on disk in {', '.join(disks)}: no memory that is ours, or a folder was named"
        if disks
        else "in memory"
    )
    return " · ".join(parts)
