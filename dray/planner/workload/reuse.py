"""What a prefix cache of some size serves to rows in the order of the input.

A block is served where its last use is not too long ago: where no more tokens than the cache holds were
touched since then. That errs on the low side, as tokens that were touched twice count twice. Of very many
blocks a part is looked at, chosen by their hashes, so that all uses of a block are seen or none
(SHARDS, FAST '15).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dray.planner.rows import RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_BLOCKS = 500_000
_AT_A_TIME = 1_000_000


def served_in_order(facts: RowFacts, caches: Sequence[float]) -> list[float]:
    """The share of the prompt tokens that a cache of each size, in tokens, serves."""
    total = int(np.sum(facts.prompt_tokens, dtype=np.int64))
    if not total or not len(facts.chain):
        return [0.0] * len(caches)
    seen = min(1.0, _MOST_BLOCKS / len(facts.chain))
    hashes, rows = _chosen(facts, seen)
    order = np.argsort(hashes, kind="stable")
    hashes, rows = hashes[order], rows[order]
    again = hashes[1:] == hashes[:-1]
    touched = np.cumsum(facts.prompt_tokens, dtype=np.float64)
    touched += np.cumsum(facts.output_tokens, dtype=np.float64)
    since = np.sort((touched[rows[1:]] - touched[rows[:-1]])[again])
    tokens = facts.block_tokens / seen / total
    return [min(1.0, float(np.searchsorted(since, cache, "right")) * tokens) for cache in caches]


def _chosen(facts: RowFacts, share: float) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """A share of the blocks by their hashes, and their rows, in the order of the rows."""
    parts = list(_parts(facts, share))
    return np.concatenate([one for one, _ in parts]), np.concatenate([rows for _, rows in parts])


def _parts(facts: RowFacts, share: float) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    bound = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    for start in range(0, len(facts.chain), _AT_A_TIME):
        hashes = np.asarray(facts.chain[start : start + _AT_A_TIME])
        places = np.flatnonzero(hashes <= bound)
        rows = np.searchsorted(facts.chain_starts, (places + start).astype(np.uint64), "right") - 1
        yield hashes[places], rows
