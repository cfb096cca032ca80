"""When rows get another order than that of their input, and that it is one of all rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dray.planner.order import as_given
from dray.planner.order.arranging import RowOrder
from dray.planner.order.as_given import shared_as_given
from dray.planner.order.glance import may_pay
from dray.requests.spool.arranging import Arrangement
from dray.requests.spool.spool import encode_line
from tests.support.slot_simulator import makespan
from tests.unit.planner.order.test_order import BLOCK, Prompt, common, facts, prompts

pytestmark = pytest.mark.unit

ROWS = 300


def line(index: int, prompt: str, tokens: float | None = 8) -> bytes:
    asked = {} if tokens is None else {"max_tokens": tokens}
    body = {"messages": [{"role": "user", "content": prompt}], **asked}
    return encode_line(index, f"r{index}", "/v1/chat/completions", body, 0, index + 1).rstrip(b"\n")


def lines_of(rows: Sequence[str], tokens: Sequence[float] = ()) -> list[bytes]:
    lengths = tokens or [8] * len(rows)
    return [line(index, text, most) for index, (text, most) in enumerate(zip(rows, lengths, strict=True))]


def automatic(*, cached: bool = True) -> RowOrder:
    return RowOrder(always=False, cached=cached, pieces=4)


def of_prefixes(prefixes: int, rng: random.Random) -> list[str]:
    rows = [
        f"{number} {'begin ' * 60} {turn}" for number in range(prefixes) for turn in range(ROWS // prefixes)
    ]
    rng.shuffle(rows)
    return rows


def unlike(rows: int = ROWS) -> list[str]:
    return [f"{number} and no other row begins like this one, which is longer than a block of bytes is"
            for number in range(rows)]  # fmt: skip


@given(prompts, st.integers(1, 5))
def test_what_is_shared_as_given_is_what_each_row_has_of_the_one_before(
    rows: list[Prompt], chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_given, "_CHUNK_ROWS", chunk)
        pairs = itertools.pairwise(rows)
        assert shared_as_given(facts(rows)) == sum(common(*pair) for pair in pairs) * BLOCK


@given(st.lists(st.text(max_size=200), max_size=60), st.integers(1, 40))
def test_an_order_has_each_row_once_and_is_the_same_each_time(texts: list[str], pieces: int) -> None:
    lines = lines_of(texts)
    found, again = (RowOrder(always=True, cached=True, pieces=pieces)(lines) for _ in range(2))
    if not lines:
        assert found is again is None
        return
    assert found is not None
    assert again is not None
    assert sorted(found.rows.tolist()) == list(range(len(lines)))
    assert found.starts.tolist() == sorted(set(found.starts.tolist()))
    assert found.starts[0] == 0
    assert len(found.families) == len(found.starts)
    assert (found.families >= 0).all()
    for name in ("rows", "starts", "families"):
        assert np.array_equal(getattr(found, name), getattr(again, name))


def test_rows_with_a_common_prefix_come_together(rng: random.Random) -> None:
    rows = of_prefixes(20, rng)
    order = automatic()
    found = order(lines_of(rows))
    assert found is not None
    assert [rows[row].split()[0] for row in found.rows[found.starts]] == list(
        dict.fromkeys(text.split()[0] for text in rows)  # whose first row comes first
    )
    assert order.ordered == ROWS
    assert order.shares is not None
    assert order.shares[0] > 0.8 > 0.2 > order.shares[1]
    assert not order.by_length


def test_rows_stay_where_no_order_pays(rng: random.Random) -> None:
    apart = automatic()
    assert apart(lines_of(unlike())) is None
    assert apart.apart
    assert apart.shares is None
    sorted_ones = automatic()
    assert sorted_ones(lines_of(sorted(of_prefixes(20, rng)))) is None
    assert sorted_ones.shares is not None
    assert sorted_ones.shares[0] > 0.8
    assert automatic(cached=False)(lines_of(of_prefixes(20, rng))) is None
    none = automatic()
    assert none([]) is None
    assert none.shares is None


def test_whoever_asks_for_prefixes_gets_them(rng: random.Random) -> None:
    order = RowOrder(always=True, cached=False, pieces=4)
    assert order(lines_of(of_prefixes(20, rng))) is not None
    plain = order(lines_of(unlike()))
    assert plain is not None
    assert plain.rows.tolist() == list(range(ROWS))


def test_long_answers_begin_first(rng: random.Random) -> None:
    lengths = [rng.choice([4, 4, 4, 400]) for _ in range(ROWS)]
    order = automatic()
    found = order(lines_of(unlike(), lengths))
    assert found is not None
    assert [lengths[row] for row in found.rows] == sorted(lengths, reverse=True)
    assert order.by_length
    floats = automatic()(lines_of(unlike(), [float(length) for length in lengths]))
    assert floats is not None
    assert list(floats.rows) == list(found.rows)
    assert automatic()(lines_of(unlike(), [rng.choice([40, 41]) for _ in range(ROWS)])) is None


def test_the_families_of_a_prompt_that_all_rows_share_are_one(rng: random.Random) -> None:
    """Its parts may go to several replicas, and to the same one where that is free."""
    system = "You sort tickets into one of five kinds, and say how urgent each of them is. " * 3
    found = RowOrder(always=True, cached=True, pieces=4)(lines_of([system + text for text in unlike()]))
    assert isinstance(found, Arrangement)
    assert len(set(found.families.tolist())) == 1
    assert found.families[0] != 0


def test_slots_are_filled_in_the_order_of_the_rows() -> None:
    assert makespan([3, 1, 1, 1], 2) == 3
    assert makespan([1, 1, 1, 3], 2) == 4
    assert makespan([], 3) == 0


@given(st.lists(st.integers(1, 100), min_size=1, max_size=80), st.integers(1, 8))
def test_the_longest_first_end_within_a_third_of_the_ideal(lengths: list[int], slots: int) -> None:
    """Graham, 1969: at most 4/3 of the best, which is no shorter than the mean or the longest row."""
    ideal = max(sum(lengths) / slots, max(lengths))
    assert ideal <= makespan(sorted(lengths, reverse=True), slots) <= ideal + max(lengths)


BODIES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(st.sampled_from(["n", "max_tokens", 'a"b":{']), st.text(max_size=5)),
        "max_tokens": st.sampled_from([8, 64]),
        "n": st.sampled_from([1, 2]),
    },
)


@given(st.lists(st.tuples(st.sampled_from(["a" * 80, "b" * 80, "c"]), BODIES), min_size=1, max_size=30))
@example([("c", {"metadata": {"n": ""}}), ("c", {"metadata": {"n": ""}, "n": 2})])
@example([("c", {"n": 1, "metadata": {"n": ""}}), ("c", {"n": 2, "metadata": {"n": ""}})])
def test_a_glance_misses_no_rows_that_begin_alike_or_ask_for_other_lengths(
    rows: list[tuple[str, dict[str, Any]]],
) -> None:
    lines = [
        encode_line(
            index,
            'r"b":{',
            "/v1/completions",
            {**body, "prompt": text if len(text) > 1 else f"{index} alone"},
            0,
            index + 1,
        ).rstrip(b"\n")
        for index, (text, body) in enumerate(rows)
    ]
    alike = max(sum(text == other for other, _ in rows) for text in ("a" * 80, "b" * 80)) > 1
    lengths = {(body.get("max_tokens"), body.get("n")) for _, body in rows}
    assert may_pay(lines) or not (alike or len(lengths) > 1)


def test_a_glance_sees_that_queries_repeat() -> None:
    """A ranking holds one query against many documents: a reranker that generates reads the query first."""
    lines = [
        encode_line(
            index,
            f'r{index}"b":{{',
            "/v1/score",
            {"documents": f"document {index}", "queries": "one query for all of them " * 4},
            0,
            index + 1,
        ).rstrip(b"\n")
        for index in range(50)
    ]
    assert may_pay(lines)


@pytest.mark.parametrize(
    ("fields", "pays"),
    [
        ([{"instructions": "one task for all of them " * 4}] * 2, True),
        ([{"max_output_tokens": 9}, {"max_output_tokens": 90}], True),
        ([{"max_output_tokens": 9}] * 2, False),
    ],
)
def test_a_glance_sees_what_responses_have_in_common(fields: list[dict[str, Any]], pays: bool) -> None:
    lines = [
        encode_line(
            index, f"r{index}", "/v1/responses", {"input": f"{index} alone"} | body, 0, index + 1
        ).rstrip(b"\n")
        for index, body in enumerate(fields)
    ]
    assert may_pay(lines) is pays


def test_a_glance_is_enough_for_rows_that_have_nothing_in_common() -> None:
    assert not may_pay(lines_of(unlike()))
    assert not may_pay([])
    assert may_pay(lines_of([*unlike(), *unlike()[:3]]))
    assert not may_pay(lines_of([*unlike(), *unlike()[:1]]))  # less than one in a hundred
