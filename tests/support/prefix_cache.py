"""What a prefix cache of limited size serves to rows that come one after the other: exact, and slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from dray.planner.rows import RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cached_blocks(facts: RowFacts, order: Iterable[int], cache_blocks: int) -> NDArray[np.uint32]:
    """Blocks of each row's prompt that the cache serves, [N] in the given order of indices.

    The least recently used block leaves first, and of one row's blocks the last one first, as in vLLM's block
    pool (``vllm/v1/core/kv_cache_manager.py``: ``free`` frees in reverse order). At least one token of a
    prompt is computed (``get_computed_blocks``). A row's blocks are freed before the next row comes, so
    requests that run beside each other, and outputs, must be taken off ``cache_blocks`` by the caller.
    Time grows with the blocks: a sample of rows is enough for a forecast.
    """
    cached: OrderedDict[int | tuple[int, int], None] = OrderedDict()
    served = []
    for row in order:
        chain = facts.chain[int(facts.chain_starts[row]) : int(facts.chain_starts[row + 1])].tolist()
        most = max(int(facts.prompt_tokens[row]) - 1, 0) // facts.block_tokens
        hits = 0
        while hits < min(len(chain), most) and chain[hits] in cached:
            hits += 1
        served.append(hits)
        private = int(facts.prompt_tokens[row]) // facts.block_tokens - len(chain)
        for block in (*((row, number) for number in range(private)), *reversed(chain)):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > cache_blocks:
            cached.popitem(last=False)
    return np.array(served, np.uint32)
