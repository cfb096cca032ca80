"""The ids of tool calls: what a row's index makes of them, and what a model wrote itself."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.requests.row_ids import call_id, with_index

pytestmark = pytest.mark.unit

RANDOM, MISTRALS = "chatcmpl-tool-8a1f", "aB3dE6gH9"
rows = st.integers(0, 10**9)
places = st.tuples(st.integers(0, 127), st.integers(0, 300))


def test_a_random_id_names_row_choice_and_call() -> None:
    assert call_id(RANDOM, 7, 0, 2) == "call_7_0_2"


def test_what_kimi_wrote_stays() -> None:
    """Its chat template shows it the same id again, and the result of the call under it."""
    assert call_id("functions.get_weather:0", 7, 0, 2) == "functions.get_weather:0"


@given(rows, places)
def test_mistrals_are_nine_letters_and_digits(row: int, place: tuple[int, int]) -> None:
    """mistral_common refuses others in a history: the answer to one row could not be put into another."""
    found = call_id(MISTRALS, row, *place)
    assert re.fullmatch("[a-zA-Z0-9]{9}", found)
    assert found == call_id("000000000", row, *place)
    assert found != call_id(MISTRALS, row + 1, *place)


@given(rows, rows, st.lists(places, max_size=4, unique=True), st.text())
def test_the_answer_of_another_row_has_other_ids(
    old: int, new: int, calls: list[tuple[int, int]], text: str
) -> None:
    def answer(row: int) -> bytes:
        said = f'{text} "id":"{call_id(MISTRALS, old, 0, 0)}"'
        listed = [{"id": call_id(MISTRALS, row, *place), "function": {"arguments": said}} for place in calls]
        kept = {"id": "functions.f:0", "function": {"arguments": said}}
        message = {"content": said, "tool_calls": [*listed, kept]}
        body = {"id": f"chatcmpl-{row}", "choices": [{"message": message}]}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    assert with_index(answer(old), old, new) == answer(new)
