"""Hashes of a prompt's full blocks, each over all tokens up to its end: as a prefix cache tells blocks apart.

vLLM hashes block after block, each with the hash of the one before. Here the hash of a block and its depth
is one number, and a chain's hash is the sum of these numbers so far, modulo 2**64: the same prefixes have the
same hashes, and one pass of numpy computes those of many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dray.requests.mixing import STEP, mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEED = 20_261_124  # hashes are the same in every process and on every machine
_NO_BLOCK = np.uint64(0)  # dray/planner/order takes it for the end of a chain


def chains(
    prompts: Sequence[NDArray[np.uint32]], block_tokens: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The hashes of all prompts' full blocks, prompt after prompt, and how many each prompt has."""
    counts = np.array([len(prompt) // block_tokens for prompt in prompts], np.uint32)
    total = int(counts.sum())
    if not total:
        return np.empty(0, np.uint64), counts
    tokens = np.concatenate([prompt[: len(prompt) // block_tokens * block_tokens] for prompt in prompts])
    sums = tokens.reshape(total, block_tokens).astype(np.uint64) @ _factors(block_tokens)
    starts = np.cumsum(counts, dtype=np.int64) - counts
    depths = np.arange(total, dtype=np.int64) - np.repeat(starts, counts)
    blocks = mixed(sums + depths.astype(np.uint64) * STEP)
    summed = np.cumsum(blocks, dtype=np.uint64)
    before = np.append(np.zeros(1, np.uint64), summed)[starts]
    found = mixed(summed - np.repeat(before, counts))
    found[found == _NO_BLOCK] = np.uint64(1)
    return found, counts


def _factors(block_tokens: int) -> NDArray[np.uint64]:
    """A random odd factor for each place in a block."""
    drawn = np.random.default_rng(_SEED).integers(0, 2**63, block_tokens, np.uint64)
    factors: NDArray[np.uint64] = drawn * np.uint64(2) + np.uint64(1)
    return factors
