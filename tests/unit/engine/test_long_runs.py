"""Texts for which gpt-oss's tokenizer takes minutes are refused, and no others; the look at them is short."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.vllm_adapter.long_runs import LONGEST, _long_run, refuse_long_runs
from dray.errors import RequestRefused

pytestmark = pytest.mark.unit

PROSE = "The quick brown fox jumps over 13 dogs. "


@given(
    before=st.integers(0, 3 * LONGEST),
    length=st.integers(LONGEST - 3, 3 * LONGEST),
    sort=st.sampled_from([" ", "\n", "ACGT", "\u7530", "=", "_-"]),
)
def test_a_run_is_found_wherever_it_begins(before: int, length: int, sort: str) -> None:
    run = (sort * length)[:length]
    text = f"{(PROSE * 1600)[:before]}9{run}9{PROSE}"
    assert _long_run(text) == (length if length > LONGEST else 0)
    assert _long_run(run) == (length if length > LONGEST else 0)


def test_the_row_is_refused_with_the_length() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": " " * (LONGEST + 1)}]}]}
    with pytest.raises(RequestRefused, match="20,001 letters") as refusal:
        refuse_long_runs(body)
    assert refusal.value.code == "request_too_large"
    refuse_long_runs({"messages": [{"role": "user", "content": PROSE * 10_000}], "a": [1, None, "b"]})


def test_a_million_digits_or_words_are_looked_at_in_no_time() -> None:
    began = time.process_time()
    for text in "7" * 8_000_000, PROSE * 200_000, ("a" * (LONGEST - 1) + " ") * 400:
        assert not _long_run(text)
    assert time.process_time() - began < 2
