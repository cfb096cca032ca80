"""Repeated ids are found, and only those."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.requests import duplicates
from dray.requests.duplicates import DigestIndex, IdIndex

pytestmark = pytest.mark.unit


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=2)),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_repeats_are_found_with_their_first(ids: list[str], spill_rows: int, searched_rows: int) -> None:
    expected: list[list[int]] = []
    first: dict[str, int] = {}
    for index, custom_id in enumerate(ids):
        if custom_id in first:
            expected.append([index, first[custom_id]])
        first.setdefault(custom_id, index)
    found = IdIndex(spill_rows=spill_rows, searched_rows=searched_rows)
    with found as index_of_ids, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_PARTS", 4)
        for index, custom_id in enumerate(ids):
            index_of_ids.add(index, custom_id)
        assert index_of_ids.repeats().tolist() == expected


def test_two_among_many() -> None:
    with IdIndex(spill_rows=10_000) as ids:
        for index in range(50_000):
            ids.add(index, f"request-{index if index != 49_000 else 17}")
        assert ids.repeats().tolist() == [[49_000, 17]]


def test_very_many_equal_rows_are_told_in_blocks() -> None:
    """All of them are in one file: a driver's memory does not grow with them."""
    with DigestIndex(spill_rows=1_000, searched_rows=500) as index:
        for row in range(20_000):
            index.add_digest(row, bytes(16) if row % 2 else (row + 1).to_bytes(16, "big"))
        blocks = list(index.pairs())
    assert max(map(len, blocks)) <= 500
    found = {int(follower): int(leader) for block in blocks for follower, leader in block}
    assert found == dict.fromkeys(range(3, 20_000, 2), 1)
