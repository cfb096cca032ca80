"""The order of a job's rows: groups of a common prefix stay whole, and what decodes longest begins first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dray.planner.order.depth_first import depth_first
from dray.planner.rows import RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """``rows``: index of the row at each position, [N]; ``group_starts``: positions where groups begin, [G].

    A group is all rows that share their first block, or one row that shares it with no other. One that was
    too large is parted where its prefixes part: ``families`` has the hash of the first block of such groups,
    and 0 for others, [G].
    ``shared_tokens`` are the prompt tokens that a prefix cache serves in this order, once the row before has
    been computed: the most that any order can have. ``prompt_tokens`` are those of all rows.
    """

    rows: NDArray[np.uint32]
    group_starts: NDArray[np.uint32]
    families: NDArray[np.uint64]
    shared_tokens: int
    prompt_tokens: int


def order_rows(facts: RowFacts, most_rows: int | None = None) -> Order:
    """Depth first within groups; groups by their mean predicted output, the longest first.

    Rows of one group have the same template, and so lengths alike: its mean says how early it must begin for
    the job to end together. Sorting single rows of a group by length would leave the tree's order, and so
    compute prefixes again. Groups of equal length keep the order of the input.

    Groups of over ``most_rows`` are parted, down to single rows: a prefix of so many rows is in the cache
    nearly all the time, whatever runs between them.
    """
    tree = depth_first(facts)
    whole = np.flatnonzero(tree.shared == 0)
    starts = whole if most_rows is None else _parted(tree.shared, whole, most_rows)
    sizes = np.diff(np.append(starts, len(tree.rows)))
    lengths = _means(facts.output_tokens[tree.rows], starts, sizes)
    firsts = np.minimum.reduceat(tree.rows, whole) if len(whole) else whole
    of_whole = np.searchsorted(whole, starts, side="right") - 1
    ranked = np.lexsort((starts, firsts[of_whole], -lengths))
    places = _places(starts[ranked], sizes[ranked])
    ends = np.cumsum(sizes[ranked])
    return Order(
        rows=tree.rows[places],
        group_starts=(ends - sizes[ranked]).astype(np.uint32),
        families=_families(facts, tree.rows[whole], np.bincount(of_whole))[of_whole][ranked],
        shared_tokens=_served(facts, tree.rows, tree.shared),
        prompt_tokens=int(np.sum(facts.prompt_tokens, dtype=np.int64)),
    )


def _parted(shared: NDArray[np.uint32], starts: NDArray[np.int64], most_rows: int) -> NDArray[np.int64]:
    """Where groups begin, when those that are too large are parted where they share least, repeatedly."""
    while True:
        sizes = np.diff(np.append(starts, len(shared)))
        large = np.flatnonzero(sizes > max(most_rows, 1))
        if not len(large):
            return starts
        within = _places(starts[large] + 1, sizes[large] - 1)
        depths = shared[within]
        counts = sizes[large] - 1
        least = np.minimum.reduceat(depths, np.cumsum(counts) - counts)
        starts = np.union1d(starts, within[depths == np.repeat(least, counts)])


def _families(facts: RowFacts, firsts: NDArray[np.uint32], parts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hash of the first block of groups of several ``parts``; ``firsts`` is a row of each group."""
    found = np.zeros(len(parts), np.uint64)
    several = np.flatnonzero(parts > 1)
    found[several] = facts.chain[np.asarray(facts.chain_starts, np.int64)[firsts[several]]]
    return found


def _means(
    values: NDArray[np.float32], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not len(starts):
        return np.empty(0)
    means: NDArray[np.float64] = np.add.reduceat(values.astype(np.float64), starts) / sizes
    return means


def _places(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """All places of segments, one segment after the other: [1, 5], [2, 3] becomes [1, 2, 5, 6, 7]."""
    ends = np.cumsum(sizes)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    places: NDArray[np.int64] = np.repeat(starts, sizes) + within
    return places


def _served(facts: RowFacts, rows: NDArray[np.uint32], shared: NDArray[np.uint32]) -> int:
    """Tokens of the blocks shared with the row before; of each prompt at least one token is computed."""
    most = np.maximum(facts.prompt_tokens[rows].astype(np.int64) - 1, 0) // facts.block_tokens
    return int(np.minimum(shared, most).sum()) * facts.block_tokens
