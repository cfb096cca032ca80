"""What is known of each row before it runs, in arrays, for millions of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowFacts:
    """Tokens and prefixes of ``N`` rows, by their index in the input. Arrays may be memory maps.

    ``chain`` holds, row after row, the hashes of the row's full blocks of ``block_tokens`` prompt tokens.
    Hash ``i`` of a row stands for all its tokens in blocks 0 to ``i``, as in vLLM's prefix cache; so two rows
    with the same hash have the same prefix. Row ``r`` has ``chain[chain_starts[r]:chain_starts[r + 1]]``.
    Blocks beyond the first one that no other row has may be left out.

    Raises:
        ValueError: the arrays do not belong together.
    """

    prompt_tokens: NDArray[np.uint32]  # [N]
    output_tokens: NDArray[np.float32]  # [N], predicted
    block_tokens: int
    chain: NDArray[np.uint64]  # [M]
    chain_starts: NDArray[np.uint64]  # [N + 1]

    def __post_init__(self) -> None:
        rows = len(self.prompt_tokens)
        if len(self.output_tokens) != rows or len(self.chain_starts) != rows + 1:
            raise ValueError(
                f"{rows} prompts, {len(self.output_tokens)} outputs and {len(self.chain_starts)} starts of "
                f"chains do not belong together: there must be as many outputs, and one start more"
            )
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens is {self.block_tokens}, and must be at least 1")
        if int(self.chain_starts[0]) != 0 or int(self.chain_starts[-1]) != len(self.chain):
            raise ValueError(
                f"chains start at {self.chain_starts[0]} and end at {self.chain_starts[-1]}, but there are "
                f"{len(self.chain)} hashes"
            )

    def __len__(self) -> int:
        return len(self.prompt_tokens)
