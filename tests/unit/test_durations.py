"""Stretches of time as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.durations import seconds_of

pytestmark = pytest.mark.unit


@given(number=st.integers(0, 10**6), unit=st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)]))
def test_a_number_and_a_unit(number: int, unit: tuple[str, int]) -> None:
    assert seconds_of(f" {number}{unit[0]} ") == number * unit[1]
    assert seconds_of(f"{number}.5{unit[0]}") == (number + 0.5) * unit[1]


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1 day", "1e3s", "1.h", ".5h", "1h30m"])
def test_anything_else_is_none(text: str) -> None:
    assert seconds_of(text) is None
