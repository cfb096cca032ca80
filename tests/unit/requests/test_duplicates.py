"""Repeated ids are found, and only those."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.requests import duplicates
from dray.requests.duplicates import IdIndex

pytestmark = pytest.mark.unit


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=2)), st.integers(1, 40))
def test_repeats_are_found_with_their_first(ids: list[str], spill_rows: int) -> None:
    expected: list[list[int]] = []
    first: dict[str, int] = {}
    for index, custom_id in enumerate(ids):
        if custom_id in first:
            expected.append([index, first[custom_id]])
        first.setdefault(custom_id, index)
    with IdIndex(spill_rows=spill_rows) as index_of_ids, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_PARTS", 4)
        for index, custom_id in enumerate(ids):
            index_of_ids.add(index, custom_id)
        assert index_of_ids.repeats().tolist() == expected


def test_two_among_many() -> None:
    with IdIndex(spill_rows=10_000) as ids:
        for index in range(50_000):
            ids.add(index, f"request-{index if index != 49_000 else 17}")
        assert ids.repeats().tolist() == [[49_000, 17]]
