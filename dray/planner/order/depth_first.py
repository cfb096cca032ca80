"""Rows in the depth-first order of their prefix tree: those that share a prefix stand together.

In that order an engine needs no more of its prefix cache than one path from the root to a leaf: what the next
row shares with all rows before, it shares with the row just before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dray.planner.rows import RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_END = np.uint64(0)
"""Stands for no block at some depth. Such rows come first: they are what the others extend."""


@dataclass(frozen=True, slots=True, eq=False)
class DepthFirst:
    """``rows``: indices as the tree has them, [N]; ``shared``: blocks shared with the row before, [N]."""

    rows: NDArray[np.uint32]
    shared: NDArray[np.uint32]


def depth_first(facts: RowFacts) -> DepthFirst:
    """The rows by their prefixes; rows that share none keep the order of the input.

    One pass for each depth of the tree, over the rows that still share all blocks so far with another row.
    So the time is that of a sort for each depth at which rows part, and of a look at each shared block.
    """
    tree = _Refined(facts)
    depth = 0
    while len(tree.open):
        tree.part(depth)
        depth += 1
    return DepthFirst(tree.rows, tree.shared)


class _Refined:
    """An order of all rows in segments whose rows share the first blocks; ``part`` takes one block more."""

    def __init__(self, facts: RowFacts) -> None:
        count = len(facts)
        self._chain = facts.chain
        self._starts = np.asarray(facts.chain_starts, np.int64)
        self.rows = np.arange(count, dtype=np.uint32)
        self.shared = np.zeros(count, np.uint32)
        self.open = np.arange(count, dtype=np.int64)  # places whose row shares all blocks so far with another
        self._segment = np.zeros(count, np.int64)  # of each open place: where its segment begins

    def part(self, depth: int) -> None:
        """Sort the rows of each segment by their block at ``depth``, and leave rows that are alone."""
        hashes = self._blocks(depth)
        if _mixed(self._segment, hashes).any():
            # By first appearance would need a second sort; by hash is as good, and the same in every run.
            order = np.lexsort((hashes, self._segment))
            self.rows[self.open] = self.rows[self.open[order]]
            hashes = hashes[order]
        same = _same_as_before(self._segment, hashes)
        self.shared[self.open[same]] = depth + 1
        together = same | np.append(same[1:], False)
        begins = np.where(same, 0, self.open)
        self._segment = np.maximum.accumulate(begins)[together]
        self.open = self.open[together]

    def _blocks(self, depth: int) -> NDArray[np.uint64]:
        """The hash of each open row at ``depth``; those without a block there have ``_END``."""
        rows = self.rows[self.open]
        at = self._starts[rows] + depth
        there = at < self._starts[rows + 1]
        found = np.full(len(rows), _END, np.uint64)
        found[there] = self._chain[at[there]]
        return found


def _same_as_before(segment: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    same = np.zeros(len(hashes), np.bool_)
    same[1:] = (segment[1:] == segment[:-1]) & (hashes[1:] == hashes[:-1]) & (hashes[1:] != _END)
    return same


def _mixed(segment: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Where a row has another block than the one before it in its segment."""
    mixed: NDArray[np.bool_] = (segment[1:] == segment[:-1]) & (hashes[1:] != hashes[:-1])
    return mixed
