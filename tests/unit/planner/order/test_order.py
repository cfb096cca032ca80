"""The order of rows against a tree that is built block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.planner.order import Order, depth_first, order_rows
from dray.planner.rows import RowFacts
from tests.support.prefix_cache import cached_blocks

pytestmark = pytest.mark.unit

BLOCK = 4
Prompt = tuple[int, ...]  # a letter for each full block
prompts = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=40)


def facts(rows: Sequence[Prompt], outputs: Sequence[float] = (), extra: int = 1) -> RowFacts:
    """Rows of full blocks, and ``extra`` tokens that fill none."""
    known: dict[Prompt, int] = {}
    chains = [[known.setdefault(row[: end + 1], len(known) + 1) for end in range(len(row))] for row in rows]
    mixed = [(hash_ * 0x9E3779B97F4A7C15) % 2**64 for chain in chains for hash_ in chain]
    return RowFacts(
        prompt_tokens=np.array([len(row) * BLOCK + extra for row in rows], np.uint32),
        output_tokens=np.array(outputs or [1.0] * len(rows), np.float32),
        block_tokens=BLOCK,
        chain=np.array(mixed, np.uint64),
        chain_starts=np.cumsum([0, *map(len, rows)]).astype(np.uint64),
    )


def common(one: Prompt, other: Prompt) -> int:
    """Blocks that two prompts begin with, both."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@given(prompts)
def test_all_rows_are_there_once_and_share_with_the_row_before_what_they_say(rows: list[Prompt]) -> None:
    found = depth_first(facts(rows))
    assert sorted(found.rows) == list(range(len(rows)))
    for place in range(1, len(rows)):
        one, other = rows[found.rows[place - 1]], rows[found.rows[place]]
        assert found.shared[place] == common(one, other)


@given(prompts)
def test_no_row_shares_more_with_any_row_before_than_with_the_one_before(rows: list[Prompt]) -> None:
    found = depth_first(facts(rows))
    for place, row in enumerate(found.rows):
        most = max((common(rows[before], rows[row]) for before in found.rows[:place]), default=0)
        assert found.shared[place] == most


@given(prompts)
def test_rows_of_every_prefix_stand_together(rows: list[Prompt]) -> None:
    order = [rows[row] for row in order_rows(facts(rows)).rows]
    for prefix in {row[:end] for row in rows for end in range(1, len(row) + 1)}:
        places = [place for place, row in enumerate(order) if row[: len(prefix)] == prefix]
        assert places == list(range(places[0], places[0] + len(places)))


@given(prompts)
def test_shared_tokens_are_those_of_a_cache_without_a_limit(rows: list[Prompt]) -> None:
    found = order_rows(facts(rows))
    blocks = cached_blocks(facts(rows), found.rows.tolist(), 10**6)
    assert found.shared_tokens == int(blocks.sum()) * BLOCK
    distinct = {row[:end] for row in rows for end in range(1, len(row) + 1)}
    assert found.shared_tokens == (sum(map(len, rows)) - len(distinct)) * BLOCK


@given(prompts)
def test_a_cache_of_the_longest_row_serves_it_all(rows: list[Prompt]) -> None:
    """In the tree's order nothing is lost to a small cache."""
    found = order_rows(facts(rows))
    room = max(map(len, rows), default=0) + 1
    assert found.shared_tokens == int(cached_blocks(facts(rows), found.rows.tolist(), room).sum()) * BLOCK


def test_one_token_of_a_prompt_is_always_computed() -> None:
    same = facts([(0, 1), (0, 1)], extra=0)
    assert order_rows(same).shared_tokens == BLOCK
    assert cached_blocks(same, [0, 1], 100).tolist() == [0, 1]


def test_groups_that_decode_long_begin_first() -> None:
    rows = [(0, 1), (1,), (0, 2), (2,), (1, 1)]
    found = order_rows(facts(rows, outputs=[1, 5, 3, 9, 5]))
    assert found.rows[:3].tolist() == [3, 1, 4]
    assert sorted(found.rows[3:]) == [0, 2]
    assert found.group_starts.tolist() == [0, 1, 3]


def test_rows_that_share_nothing_keep_the_order_of_the_input() -> None:
    found = order_rows(facts([(number,) for number in range(50)]))
    assert found.rows.tolist() == list(range(50))
    assert found.shared_tokens == 0


def test_a_small_cache_forgets_prefixes_in_the_order_of_the_input() -> None:
    """100 prefixes of ten rows, in turns, in a cache for 25 prefixes: only the tree's order hits."""
    rows = [(prefix, *range(8), 100 + turn) for turn in range(10) for prefix in range(100)]
    found, table = order_rows(facts(rows)), facts(rows)
    room = 25 * 9
    assert cached_blocks(table, range(1000), room).sum() == 0
    assert cached_blocks(table, found.rows.tolist(), room).sum() == 100 * 9 * 9
    assert found.shared_tokens == 8100 * BLOCK


def test_no_rows() -> None:
    found = order_rows(facts([]))
    assert isinstance(found, Order)
    assert not len(found.rows)
    assert not len(found.group_starts)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    good = facts([(0,), (1,)])
    with pytest.raises(ValueError, match="2 prompts, 1 outputs"):
        RowFacts(
            prompt_tokens=good.prompt_tokens,
            output_tokens=good.output_tokens[:1],
            block_tokens=BLOCK,
            chain=good.chain,
            chain_starts=good.chain_starts,
        )
    with pytest.raises(ValueError, match="there are 1 hashes"):
        RowFacts(
            prompt_tokens=good.prompt_tokens,
            output_tokens=good.output_tokens,
            block_tokens=BLOCK,
            chain=good.chain[:1],
            chain_starts=good.chain_starts,
        )


@given(prompts, st.integers(1, 10))
def test_a_group_that_is_too_large_is_parted_where_its_prefixes_part(rows: list[Prompt], most: int) -> None:
    found = order_rows(facts(rows), most)
    order = [rows[row] for row in found.rows]
    assert sorted(found.rows) == list(range(len(rows)))
    assert order == [rows[row] for row in order_rows(facts(rows)).rows]  # of equal lengths: as before
    starts = found.group_starts.tolist()
    ends = [*starts[1:], len(rows)][: len(starts)]
    for start, end, family in zip(starts, ends, found.families, strict=True):
        assert end - start <= most
        relatives = [row for row in order if row[:1] == order[start][:1] != ()]
        assert bool(family) == (len(relatives) > most)
        inside = set(order[start:end])
        least = min((common(one, other) for one in inside for other in order[start:end]), default=0)
        for other in [*order[:start], *order[end:]]:  # no row beyond shares all that these share
            assert end - start == 1 or common(order[start], other) < least


def test_parts_of_a_large_group_are_placed_by_length() -> None:
    """A system prompt that all rows share keeps no long row from the begin."""
    rows = [(0, number) for number in range(1, 9)] + [(9,)]
    found = order_rows(facts(rows, outputs=[1, 2, 3, 4, 5, 6, 7, 8, 4.5]), 4)
    assert found.rows.tolist() == [7, 6, 5, 4, 8, 3, 2, 1, 0]
    assert [bool(family) for family in found.families] == [True] * 4 + [False] + [True] * 4
    assert len(set(found.families.tolist())) == 2
