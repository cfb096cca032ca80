"""The workload of a job from a sample, from bytes, and from every row; and what a small cache serves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.planner.rows import RowFacts
from dray.planner.workload import AtLeast, Bytes, Counting, Learned, TokenizerAt, estimate, gather
from dray.planner.workload.estimating import fitted
from dray.planner.workload.reuse import served_in_order
from dray.planner.workload.sampling import Sample
from dray.requests.spool.spool import encode_line
from tests.support.prefix_cache import cached_blocks

pytestmark = pytest.mark.unit

TICKETS = Path(__file__).parents[4] / "examples/tickets"
WORDS = [
    "my",
    "order",
    "has",
    "not",
    "come",
    "yet",
    "and",
    "the",
    "invoice",
    "is",
    "wrong",
    "please",
    "send",
    "a",
    "label",
    "for",
    "the",
    "monitor",
]


def lines(*bodies: dict[str, Any]) -> list[bytes]:
    return [
        encode_line(index, f"r{index}", "/v1/completions", body, 0, index + 1)
        for index, body in enumerate(bodies)
    ]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def table(groups: int, each: int, seed: int = 1) -> list[bytes]:
    """Shuffled rows: a prefix of the group, then text of the row's own, of very different lengths."""
    rng = random.Random(seed)
    prefixes = [f"{number:05d} {words(rng, 120)} " for number in range(groups)]
    prompts = [f"{prefixes[n % groups]}{words(rng, rng.randint(5, 60))}" for n in range(groups * each)]
    rng.shuffle(prompts)
    return lines(*({"prompt": prompt, "max_tokens": 8} for prompt in prompts))


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerAt:
    pytest.importorskip("tokenizers")
    return TokenizerAt(folder=str(TICKETS / "model"))


@pytest.mark.heavy(one_of=3)
def test_a_sample_comes_near_every_row(tokenizer: TokenizerAt) -> None:
    """Groups of 10 among 1,000 rows: a sample of 200 rows alone would see next to none of what they share."""
    rows = table(groups=100, each=10)
    whole, _ = estimate(rows, Counting(tokenizer=tokenizer, sample=None))
    sampled, notes = estimate(rows, Counting(tokenizer=tokenizer, sample=200))
    assert notes == ()
    assert whole.input_error == 0 < sampled.input_error < 0.05
    assert abs(sampled.input.mean / whole.input.mean - 1) < sampled.input_error
    assert sampled.input.p99 == pytest.approx(whole.input.p99, rel=0.05)
    assert whole.shared > 0.6
    assert sampled.shared == pytest.approx(whole.shared, abs=0.06)
    assert (sampled.groups, sampled.grouped, sampled.largest) == (100, 1000, 10)
    assert (whole.groups, whole.grouped, whole.largest) == (100, 1000, 10)


@pytest.mark.heavy(one_of=3)
def test_few_rows_are_all_tokenized(tokenizer: TokenizerAt) -> None:
    rows = table(groups=5, each=10)
    sampled, _ = estimate(rows, Counting(tokenizer=tokenizer, sample=2000))
    whole, _ = estimate(rows, Counting(tokenizer=tokenizer, sample=None))
    assert sampled == whole


@pytest.mark.heavy(one_of=3)
def test_a_missing_tokenizer_is_said_and_widens_the_figures(tmp_path: Path) -> None:
    """Whether a sample or every row was to be tokenized."""
    (tmp_path / "tokenizer.json").write_text("{}")
    for folder, sample in ((tmp_path / "none", 10), (tmp_path / "none", None), (tmp_path, 10)):
        how = Counting(tokenizer=TokenizerAt(folder=str(folder)), sample=sample)
        found, notes = estimate(table(groups=3, each=4), how)
        assert "Tokens are guessed from bytes" in notes[0]
        assert str(folder) in notes[0] or "transformers" in notes[0]
        assert found.input_error == 0.35
        assert found.rows == 12


def test_rows_beyond_the_model_become_no_demand() -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": [1] * 90, "max_tokens": 10},
        {"prompt": [1] * 100, "max_tokens": 10},
        {"prompt": [1], "max_tokens": 101},
        {"prompt": None},
    ]
    found, _ = estimate(lines(*bodies), Counting(tokenizer=None, missing="none", max_length=100))
    assert (found.rows, found.too_long, found.refused, found.cut) == (1, 2, 1, 0)
    assert found.demand().longest == 100


def test_an_answer_that_does_not_fit_behind_its_prompt_is_cut() -> None:
    """vLLM gives it what is left: the row is answered, and paid for."""
    rows = lines(*([{"prompt": [1] * 1251, "max_tokens": 2000}] * 200), {"prompt": [1], "max_tokens": 2600})
    found, _ = estimate(rows, Counting(tokenizer=None, missing="none", max_length=2500))
    assert (found.rows, found.too_long, found.cut) == (200, 1, 200)
    assert (found.output.mean, found.longest_output, found.longest_tokens) == (1249, 1249, 2500)


def test_lengths_of_earlier_answers_are_no_limits() -> None:
    """A context by the mean answer would end longer ones, or refuse rows that allow them."""
    rows = lines(*([{"prompt": [1] * 100, "max_tokens": 2000}] * 9), {"prompt": [1], "max_tokens": 5000})
    how = Counting(tokenizer=None, max_length=4000, lengths=Learned(mean=300, error=0.3, jobs=1))
    found, _ = estimate(rows, how)
    assert (found.rows, found.too_long) == (9, 1)
    assert (found.longest_tokens, found.longest_output, found.output.mean) == (2100, 2000, 300)


def test_rows_that_nothing_bounds_have_what_their_prompts_leave() -> None:
    """A guess at their answers makes none of them too long."""
    bodies: list[dict[str, Any]] = [
        {"prompt": [1] * size, "max_tokens": None} for size in (50, 950, 999, 1000)
    ]
    found, _ = estimate(lines(*bodies), Counting(tokenizer=None, missing="none", max_length=1000))
    assert (found.rows, found.too_long) == (3, 1)
    assert found.output.mean == pytest.approx((256 + 50 + 1) / 3)
    assert found.demand().longest == 1000


def test_rows_of_several_sequences_are_as_long_as_each_of_them() -> None:
    """vLLM runs each prompt, and each answer to it, by itself: it checks their lengths one by one."""
    bodies: list[dict[str, Any]] = [
        {"prompt": [1] * 60, "max_tokens": 40, "n": 8},
        {"prompt": [[1] * 60, [2] * 40], "max_tokens": 40},
        {"prompt": [[1] * 100, [2] * 40], "max_tokens": 40},
    ]
    found, _ = estimate(lines(*bodies), Counting(tokenizer=None, missing="none", max_length=100))
    assert (found.rows, found.too_long) == (2, 1)
    demand = found.demand()
    assert (demand.longest, demand.tail_output) == (100, 40)
    assert demand.tokens == 60 + 8 * 40 + 100 + 2 * 40
    each = demand.by_sequence()
    assert (each.rows, each.output_tokens) == (10, 40)
    assert each.rows * each.input_tokens == pytest.approx(8 * 60 + 100)
    assert each.rows * (each.input_tokens - each.hit) == pytest.approx((60 + 100) * (1 - found.shared))


@pytest.mark.parametrize(("least", "mean", "error"), [(16, 628, 0.7), (400, 700, 0.45)])
def test_answers_that_were_cut_bound_lengths_from_below(least: int, mean: float, error: float) -> None:
    rows = lines({"prompt": [1], "max_tokens": 1000}, {"prompt": [1], "max_tokens": None})
    how = Counting(tokenizer=None, lengths=AtLeast(mean=least, jobs=1))
    found, _ = estimate(rows, how)
    assert found.output.mean == mean
    assert found.output_error == pytest.approx(error)


@pytest.mark.parametrize(("allowed", "mean", "error"), [(None, 512, 0.9), (512, 512, 0.0), (1024, 1024, 0.5)])
def test_cut_answers_without_max_tokens_may_be_longer(allowed: int | None, mean: int, error: float) -> None:
    """The least length says nothing of how far above it they end."""
    rows = lines(*[{"prompt": [1], "max_tokens": allowed}] * 3)
    found, _ = estimate(rows, Counting(tokenizer=None, lengths=AtLeast(mean=512, jobs=1)))
    assert (found.output.mean, found.output_error) == pytest.approx((mean, error))


def test_a_job_without_a_row_to_answer_is_refused() -> None:
    found, _ = estimate(lines({"prompt": None}), Counting(tokenizer=None))
    with pytest.raises(ConfigError, match="1 are requests that the engine refuses"):
        found.demand()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"max_tokens": 4, "ignore_eos": True}, 0.0),
        ({"max_tokens": 4}, 0.5),
        ({"max_tokens": None}, 0.9),
        ({}, 0.5),
    ],
)
def test_outputs_are_as_unsure_as_their_bounds(body: dict[str, Any], error: float) -> None:
    found, _ = estimate(lines({"prompt": [1]} | body), Counting(tokenizer=None))
    assert found.output_error == pytest.approx(error)


@given(st.integers(0, 3000), st.integers(1, 300))
def test_a_sample_holds_enough_and_not_more(rows: int, least: int) -> None:
    sample = Sample([b"x"] * rows, least)
    assert len(list(sample)) == sample.seen == rows
    if rows <= 2 * least:
        assert sample.is_whole
    else:
        assert 0.4 * least < len(sample.kept) + 20  # halvings are by chance
        assert len(sample.kept) <= 2 * least
    assert list(sample.kept) == sorted(sample.kept)


def test_a_sample_sees_both_of_two_templates_that_take_turns() -> None:
    sample = Sample([b"a", b"b"] * 5000, 100)
    list(sample)
    share = sum(row == b"a" for row in sample.kept.values()) / len(sample.kept)
    assert 0.3 < share < 0.7


def test_long_rows_bound_a_sample_by_its_bytes() -> None:
    sample = Sample([bytes(1000)] * 500, 400, most_bytes=100_000)
    list(sample)
    assert 0 < len(sample.kept) <= 100


@given(
    fixed=st.floats(0, 50),
    each=st.floats(0.2, 3),
    units=st.lists(st.integers(1, 5000), min_size=2, max_size=50),
)
def test_a_line_through_exact_rows_is_found(fixed: float, each: float, units: list[int]) -> None:
    x = np.array(units, np.float64)
    scale = fitted(x, fixed + each * x)
    assert fixed + each * x.mean() == pytest.approx(scale.fixed + scale.each * x.mean(), rel=1e-6)
    assert scale.error < 0.5


def test_a_cache_serves_in_input_order_what_the_exact_model_says() -> None:
    """Within a few per cent: a token that is touched twice counts twice here."""
    facts = gather(table(groups=60, each=20), Bytes()).facts
    total = float(facts.prompt_tokens.sum())
    for cache in (2_000, 10_000, 30_000, 10**9):
        exact = cached_blocks(facts, range(len(facts)), cache // 16).sum() * 16 / total
        (found,) = served_in_order(facts, [cache])
        assert found <= exact + 0.03
        assert found > exact - 0.25
    assert served_in_order(facts, [10**9])[0] == pytest.approx(exact, abs=0.02)


@settings(max_examples=30)
@given(
    chains=st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=30),
    caches=st.lists(st.floats(0, 1e6), min_size=1, max_size=4),
)
def test_a_larger_cache_never_serves_less(chains: list[list[int]], caches: list[float]) -> None:
    ids = [[hash(tuple(chain[: end + 1])) % 2**63 + 1 for end in range(len(chain))] for chain in chains]
    facts = RowFacts(
        prompt_tokens=np.array([len(one) * 16 for one in ids], np.uint32),
        output_tokens=np.ones(len(ids), np.float32),
        block_tokens=16,
        chain=np.array([value for one in ids for value in one], np.uint64),
        chain_starts=np.cumsum([0, *map(len, ids)]).astype(np.uint64),
    )
    shares = served_in_order(facts, sorted(caches))
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
