"""Two prompts have a hash in common at a depth exactly where they have all tokens up to there in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.planner.workload.chains import chains

pytestmark = pytest.mark.unit

PROMPTS = st.lists(
    st.lists(st.sampled_from([0, 1, 2, 2**32 - 1]), max_size=40).map(lambda ids: np.array(ids, np.uint32)),
    max_size=8,
)


@given(prompts=PROMPTS, block=st.integers(1, 5))
def test_hashes_agree_exactly_where_prefixes_do(prompts: list[np.ndarray], block: int) -> None:
    found, counts = chains(prompts, block)
    assert counts.tolist() == [len(prompt) // block for prompt in prompts]
    rows = np.split(found, np.cumsum(counts)[:-1]) if prompts else []
    meaning: dict[int, tuple[int, bytes]] = {}
    for prompt, row in zip(prompts, rows, strict=True):
        for depth, value in enumerate(row.tolist()):
            prefix = (depth, prompt[: (depth + 1) * block].tobytes())
            assert meaning.setdefault(value, prefix) == prefix
    assert len(set(meaning.values())) == len(meaning)
    assert 0 not in meaning


def test_a_batch_gives_the_hashes_that_each_prompt_has_alone() -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 2**32, int(size), np.uint32) for size in rng.integers(0, 100, 50)]
    together, _ = chains(prompts, 16)
    alone = [chains([prompt], 16)[0] for prompt in prompts]
    assert together.tolist() == np.concatenate(alone).tolist()


def test_hashes_are_the_same_on_every_machine() -> None:
    """Facts may be counted by several processes, and kept."""
    found, _ = chains([np.arange(32, dtype=np.uint32)], 16)
    assert found.tolist() == [14239031082284759680, 18302865810139448192]
