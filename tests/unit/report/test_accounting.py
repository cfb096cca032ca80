"""The tally adds up, whatever the pages and their order, in constant memory and time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import Problem
from dray.report import Tally
from tests.support.report_rows import START, Row

pytestmark = pytest.mark.unit


def row(index: int, **changed: object) -> Row:
    values: dict[str, object] = {
        "index": index, "custom_id": f"c{index}", "response": b"{}",
        "error_code": None, "error_message": None,
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5, "queue_seconds": 0.0,
        "first_token_seconds": 0.1, "total_seconds": 0.5, "shard": 0, "epoch": 1, "committed_at": START,
    }  # fmt: skip
    return Row(**{**values, **changed})  # type: ignore[arg-type]


rows = st.lists(
    st.builds(
        row,
        st.integers(0, 10**6),
        error_code=st.sampled_from([None, None, "poison", "expired"]),
        prompt_tokens=st.integers(0, 5000),
        completion_tokens=st.integers(0, 5000),
        committed_at=st.floats(START, START + 10_000_000),
        shard=st.sampled_from([0, 3, -1]),
    ),
    min_size=1,
    max_size=400,
)


@given(rows, st.integers(1, 100), st.randoms())
def test_sums_do_not_depend_on_pages_or_order(found: list[Row], page: int, random: object) -> None:
    one, many = Tally(), Tally()
    one.observe(found)
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for at in range(0, len(shuffled), page):
        many.observe(shuffled[at : at + page])
    first, second = one.snapshot(), many.snapshot()

    assert first.rows == second.rows == len(found)
    assert first.failed == second.failed == sum(r.error_code is not None for r in found)
    assert first.tokens == second.tokens
    assert first.tokens.prompt == sum(r.prompt_tokens for r in found)
    assert first.latency == second.latency
    assert first.prompt_length == second.prompt_length
    assert {e.code: e.count for e in first.errors} == {e.code: e.count for e in second.errors}
    served = [r for r in found if r.error_code is None or (r.shard >= 0 and r.error_code != "expired")]
    for measures in (first, second):
        assert sum(b.rows for b in measures.buckets) == len(served) == measures.run_rows
        assert sum(b.completion for b in measures.buckets) == sum(r.completion_tokens for r in served)
        assert len(measures.buckets) <= 240


@pytest.mark.heavy(one_of=3)
def test_buckets_widen_as_the_job_goes_on() -> None:
    tally = Tally()
    for second in range(5000):
        tally.observe([row(second, committed_at=START + second)])
    measures = tally.snapshot()
    assert measures.bucket_seconds == 32
    assert len(measures.buckets) <= 240
    assert {bucket.rows for bucket in measures.buckets[1:-1]} == {32}
    assert measures.buckets[0].start <= START < measures.buckets[0].start + 32


def test_a_day_between_two_runs_costs_no_resolution() -> None:
    tally = Tally(since=START + 86_400)
    tally.observe([row(n, committed_at=START + n % 20) for n in range(400)])
    tally.observe([row(n, committed_at=START + 86_400 + n % 20) for n in range(400, 1000)])
    measures = tally.snapshot()
    assert measures.bucket_seconds == 0.25
    assert (measures.rows, measures.run_rows) == (1000, 600)
    assert measures.run_tokens.prompt == 6000
    assert measures.tokens.cached == 4000


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Problem("invalid_json", "not JSON: canary", "/data/in.jsonl", 7), "in.jsonl line 7"),
        (Problem("missing_field", "canary", "s3://bucket/a:9/b.jsonl", 12, "body"), "b.jsonl line 12"),
        (Problem("missing_field", "canary 3: x", None, None, "body"), "row 4"),
    ],
)
def test_a_row_without_an_id_is_named_by_its_line_as_a_refusal_does(problem: Problem, told: str) -> None:
    tally = Tally()
    bad = row(3, custom_id=None, error_code=problem.code, error_message=str(problem), shard=-1)
    tally.observe([bad])
    measures = tally.snapshot()
    assert [error.examples for error in measures.errors] == [(told,)]
    assert "canary" not in repr(measures)


def test_errors_are_named_by_their_first_rows_and_nothing_else() -> None:
    tally = Tally()
    tally.observe([row(n, error_code="poison", error_message="canary", response=None) for n in range(9)])
    tally.observe([row(9, custom_id=None, error_code="invalid_json", error_message="canary", shard=-1)])
    measures = tally.snapshot()
    assert [(e.code, e.count, e.examples) for e in measures.errors] == [
        ("poison", 9, ("c0", "c1", "c2", "c3", "c4")),
        ("invalid_json", 1, ("row 10",)),
    ]
    assert "canary" not in repr(measures)
    assert measures.latency.count == 0


def test_expired_rows_are_no_throughput() -> None:
    """They are written all at once when the time is over: the curve would end in a peak."""
    tally = Tally(since=START)
    tally.observe([row(n, committed_at=START + n) for n in range(4)])
    tally.observe(
        [row(n, error_code="expired", prompt_tokens=0, committed_at=START + 9) for n in range(4, 500)]
    )
    measures = tally.snapshot()
    assert (measures.rows, measures.failed, measures.run_rows) == (500, 496, 4)
    assert sum(bucket.rows for bucket in measures.buckets) == 4
    assert sum(bucket.failed for bucket in measures.buckets) == 0
    assert measures.errors[0].count == 496


def test_endless_codes_are_gathered() -> None:
    tally = Tally()
    tally.observe([row(n, error_code=f"code-{n}") for n in range(500)])
    errors = tally.snapshot().errors
    assert len(errors) == 101
    assert errors[0].code == "other"
    assert sum(error.count for error in errors) == 500


def test_answers_of_this_run_that_ended_at_their_limit_are_counted() -> None:
    cut = [
        b'{"choices":[{"finish_reason":"length"}]}',
        b'{"incomplete_details":{"reason":"max_output_tokens"}}',
    ]
    whole = [b'{"choices":[{"text":"\\"finish_reason\\":\\"length\\"","finish_reason":"stop"}]}', None]
    tally = Tally(since=START)
    tally.observe([row(n, response=response) for n, response in enumerate([*cut, *whole])])
    tally.observe([row(5, error_code="poison"), row(6, response=cut[0], committed_at=START - 9)])
    measures = tally.snapshot()
    assert (measures.run_rows, measures.run_answered, measures.run_cut) == (5, 4, 2)


def test_nothing_seen() -> None:
    tally = Tally()
    tally.observe([])
    measures = tally.snapshot()
    assert (measures.rows, measures.buckets, measures.errors) == (0, (), ())
