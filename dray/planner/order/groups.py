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

    A group is all rows that share their first block, or one row that shares it with no other.
    ``shared_tokens`` are the prompt tokens that a prefix cache serves in this order, once the row before has
    been computed: the most that any order can have. ``prompt_tokens`` are those of all rows.
    """

    rows: NDArray[np.uint32]
    group_starts: NDArray[np.uint32]
    shared_tokens: int
    prompt_tokens: int

    @property
    def shared_share(self) -> float:
        """The part of the prompt tokens that need not be computed: 0 to 1."""
        return self.shared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def order_rows(facts: RowFacts) -> Order:
    """Depth first within groups; groups by their mean predicted output, the longest first.

    Rows of one group have the same template, and so lengths alike: its mean says how early it must begin for
    the job to end together. Sorting single rows of a group by length would leave the tree's order, and so
    compute prefixes again. Groups of equal length keep the order of the input.
    """
    tree = depth_first(facts)
    starts = np.flatnonzero(tree.shared == 0)
    sizes = np.diff(np.append(starts, len(tree.rows)))
    lengths = _means(facts.output_tokens[tree.rows], starts, sizes)
    firsts = np.minimum.reduceat(tree.rows, starts) if len(starts) else starts
    ranked = np.lexsort((firsts, -lengths))
    places = _places(starts[ranked], sizes[ranked])
    ends = np.cumsum(sizes[ranked])
    return Order(
        rows=tree.rows[places],
        group_starts=(ends - sizes[ranked]).astype(np.uint32),
        shared_tokens=_served(facts, tree.rows, tree.shared),
        prompt_tokens=int(np.sum(facts.prompt_tokens, dtype=np.int64)),
    )


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
