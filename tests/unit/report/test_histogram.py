"""Percentiles are near the truth, and no value is lost on the way to the bars."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.report.histogram import Histogram

pytestmark = pytest.mark.unit

lengths = st.lists(st.integers(0, 200_000), min_size=1, max_size=300)
durations = st.lists(st.floats(0, 1e5), min_size=1, max_size=300)


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[max(math.ceil(q * len(values)), 1) - 1]


@given(lengths, st.integers(1, 50))
def test_lengths(values: list[int], page: int) -> None:
    histogram = Histogram()
    for at in range(0, len(values), page):
        histogram.add(np.array(values[at : at + page], dtype=np.int64))
    found = histogram.distribution()

    assert found.count == sum(found.counts) == len(values)
    assert (found.low, found.high) == (min(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))
    for q, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value == pytest.approx(nearest_rank([float(v) for v in values], q), rel=0.008)
    assert len(found.edges) == len(found.counts) + 1
    assert list(found.edges) == sorted(set(found.edges))
    assert len(found.counts) <= 52


@given(durations)
def test_durations(values: list[float]) -> None:
    histogram = Histogram(1e-4)
    histogram.add(np.array(values))
    found = histogram.distribution()
    assert sum(found.counts) == len(values)
    for q, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value == pytest.approx(nearest_rank(values, q), rel=0.008, abs=1e-4)


def test_small_lengths_get_a_bar_each() -> None:
    histogram = Histogram()
    histogram.add(np.array([6, 6, 6, 7, 9]))
    found = histogram.distribution()
    assert (found.edges, found.counts) == ((6, 7, 8, 9, 10), (3, 1, 0, 1))


def test_one_value_is_one_bar() -> None:
    histogram = Histogram()
    histogram.add(np.full(2000, 64))
    found = histogram.distribution()
    assert (found.counts, found.p50, found.p99) == ((2000,), 64, 64)


def test_a_long_tail_goes_into_the_last_bar() -> None:
    histogram = Histogram()
    histogram.add(np.array([*range(100, 200)] * 100 + [9000]))
    found = histogram.distribution()
    assert found.scale == "linear"
    assert found.edges[-1] < 400 < found.high
    assert found.counts[-1] == 1


def test_values_over_decades_take_a_log_scale() -> None:
    histogram = Histogram()
    histogram.add(np.array([0, 2, 3, 5, 8, 13, 10_000, 90_000]))
    found = histogram.distribution()
    assert found.scale == "log"
    assert sum(found.counts) == 8


def test_nothing_counted() -> None:
    histogram = Histogram()
    histogram.add(np.array([], dtype=np.int64))
    assert histogram.distribution().count == 0
