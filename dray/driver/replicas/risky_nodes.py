"""Nodes that are taken back, or may be: new replicas are to avoid them."""

from __future__ import annotations

import time


class RiskyNodes:
    """Nodes by their ids. A node that is there ``patience`` seconds after its end goes on as any other."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._ends: dict[str, float] = {}
        self._cordoned: set[str] = set()

    def note_end(self, node: str, seconds: float) -> None:
        """The node is taken back in so many seconds."""
        self._ends[node] = time.monotonic() + max(seconds, 0.0)

    def cordon(self, node: str) -> None:
        """The node may be taken back."""
        self._cordoned.add(node)

    def is_leaving(self, node: str) -> bool:
        """Whether the node is being taken back."""
        end = self._ends.get(node)
        return end is not None and time.monotonic() < end + self._patience

    def __call__(self) -> set[str]:
        """The nodes that are taken back, and those that may be."""
        return self._cordoned | {node for node in self._ends if self.is_leaving(node)}
