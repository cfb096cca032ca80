"""What rows share in the order in which they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dray.planner.rows import RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_ROWS = 1 << 16


def shared_as_given(facts: RowFacts) -> int:
    """Tokens of each row's full blocks that the row just before it has as well: the least that is cached."""
    starts = np.asarray(facts.chain_starts, np.int64)
    return sum(
        _shared(facts, starts, begin, min(begin + _CHUNK_ROWS, len(facts)))
        for begin in range(1, len(facts), _CHUNK_ROWS)
    )


def _shared(facts: RowFacts, starts: NDArray[np.int64], begin: int, end: int) -> int:
    """Tokens that rows ``begin`` to ``end`` share with the row before; a hash is of all blocks so far."""
    own = starts[begin:end]
    before = starts[begin - 1 : end - 1]
    counts = np.minimum(own - before, starts[begin + 1 : end + 1] - own)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    same = facts.chain[np.repeat(own, counts) + within] == facts.chain[np.repeat(before, counts) + within]
    row = np.repeat(np.arange(end - begin), counts)
    shared = np.bincount(row, weights=same, minlength=end - begin)
    most = np.maximum(facts.prompt_tokens[begin:end].astype(np.int64) - 1, 0) // facts.block_tokens
    return int(np.minimum(shared, most).sum()) * facts.block_tokens
