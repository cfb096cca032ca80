"""Ticks are round and inside; a time axis never runs backwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.report.scale import TimeAxis, clock_ticks, log_ticks, nice_step, ticks

pytestmark = pytest.mark.unit

moments = st.floats(0, 1e6)
intervals = st.lists(
    st.tuples(moments, st.floats(0, 1e5)).map(lambda i: (i[0], i[0] + i[1])), min_size=1, max_size=30
)


@given(st.floats(1e-6, 1e12), st.integers(2, 10))
def test_a_nice_step_is_round_and_large_enough(span: float, target: int) -> None:
    step = nice_step(span, target)
    assert span / step <= target * (1 + 1e-6)
    assert f"{step:.3e}"[0] in "125"


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_inside(low: float, span: float) -> None:
    found = ticks(low, low + span, 5)
    slack = span * 1e-6
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert len(found) <= 6


@given(st.floats(1e-3, 1e8))
def test_clock_ticks_start_at_nought_and_are_few(seconds: float) -> None:
    found = clock_ticks(seconds)
    assert found[0] == 0
    assert 1 <= len(found) <= 8
    assert found[-1] <= seconds * (1 + 1e-6)


def test_log_ticks() -> None:
    assert log_ticks(3, 250) == [5, 10, 20, 50, 100, 200]
    assert log_ticks(1, 100_000) == [1, 10, 100, 1000, 10_000, 100_000]


@given(intervals, st.lists(moments, min_size=2, max_size=20))
def test_a_time_axis_keeps_the_order_of_moments(spans: list[tuple[float, float]], asked: list[float]) -> None:
    axis = TimeAxis(spans)
    places = [axis.x(moment) for moment in sorted(asked)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 + 1e-6 for place in places)
    assert axis.x(max(end for _, end in spans)) == pytest.approx(100) or axis.running < 1e-6


def test_a_long_pause_is_folded_and_a_short_one_is_not() -> None:
    day = 86_400.0
    axis = TimeAxis([(0, 300), (320, 600), (day, day + 600)])
    assert [(part.start, part.end) for part in axis.stretches] == [(0, 600), (day, day + 600)]
    assert axis.running == 1200
    assert axis.stretches[1].pause == day - 600
    assert axis.x(600) == pytest.approx(48.5)
    assert axis.x(day) == pytest.approx(51.5)
    assert axis.x(5000) == axis.x(600)


def test_no_time_at_all() -> None:
    assert TimeAxis([]).x(5) == 0
    assert TimeAxis([]).marks() == []
