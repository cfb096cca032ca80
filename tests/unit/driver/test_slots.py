"""How many shards a replica has at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.driver.shard_tasks.slots import LEAST_SLOTS, MOST_SLOTS, slots_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("seqs", "rows", "slots"),
    [(256, 8192, 2), (1024, float("inf"), 2), (512, 1024, 2), (512, 1000, 3), (256, 256, 3), (1024, 512, 4)],
)
def test_a_replica_has_more_shards_where_these_are_smaller(seqs: int, rows: float, slots: int) -> None:
    assert slots_of(seqs, rows) == slots


@given(st.integers(0, 10_000), st.floats(0, 1e9))
def test_two_batches_are_left_when_a_shard_ends_as_far_as_the_bound_allows(seqs: int, rows: float) -> None:
    slots = slots_of(seqs, rows)
    assert LEAST_SLOTS <= slots <= MOST_SLOTS
    assert slots == MOST_SLOTS or (slots - 1) * max(rows, 1.0) >= 2 * seqs
