"""Lengths, arrivals, targets and the picture of the benchmark of batching. A smoke test has the engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from xml.etree import ElementTree

import pytest

from tests.benchmarks.batching import Gain, Wait, targets
from tests.benchmarks.batching_lengths import CAP, MEAN, SHAPES, arrivals, gain_in_steps, variation
from tests.benchmarks.batching_picture import Line, Panel, picture, ticks

pytestmark = pytest.mark.unit


def test_shapes_have_one_mean_and_vary_more_and_more() -> None:
    drawn = [shape.lengths(400) for shape in SHAPES]
    for lengths in drawn:
        assert fmean(lengths) == pytest.approx(MEAN, rel=0.01)
        assert min(lengths) >= 1
        assert max(lengths) <= CAP
    assert all(variation(one) < variation(other) for one, other in pairwise(drawn))
    assert drawn == [shape.lengths(400) for shape in SHAPES]


def test_gain_in_steps() -> None:
    assert gain_in_steps([5, 5, 5, 5], 2) == 1.0
    assert gain_in_steps([9, 1, 9, 1], 2) == 18 / 10
    gains = [gain_in_steps(shape.lengths(400), 16) for shape in SHAPES]
    assert all(one < other for one, other in pairwise(gains))


def test_arrivals_keep_their_rate_and_their_order() -> None:
    slow, fast = arrivals(200, 10.0), arrivals(200, 40.0)
    assert slow[-1] == pytest.approx(20.0)
    assert slow == sorted(slow)
    assert [moment / 4 for moment in slow] == pytest.approx(fast)


def gain(shape: str, rate: float) -> Gain:
    return Gain(device="cpu", shape=shape, variation=1.0, static=[10.0], continuous=[rate], in_steps=1.0)


def missed(gains: Sequence[Gain], waits: Sequence[Wait] = ()) -> int:
    return sum(not one.met for one in targets(gains, waits))


def test_a_gain_that_does_not_grow_misses_a_target() -> None:
    assert missed([gain("constant", 10.0), gain("uniform", 20.0), gain("lognormal", 30.0)]) == 0
    assert missed([gain("constant", 10.0), gain("uniform", 25.0), gain("lognormal", 20.0)]) == 1


def test_an_answer_that_comes_later_misses_a_target() -> None:
    def wait(policy: str, p95: float) -> Wait:
        return Wait(device="cpu", policy=policy, share=0.5, rate=5.0, median=0.1, p95=p95)

    gains = [gain("constant", 10.0), gain("lognormal", 30.0)]
    assert missed(gains, [wait("static", 2.0), wait("continuous", 1.0)]) == 0
    assert missed(gains, [wait("static", 1.0), wait("continuous", 2.0)]) == 1


@pytest.mark.parametrize("most", [0.03, 1.0, 1.44, 3.9, 92.0, 1e6])
def test_ticks_reach_the_most(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0
    assert found[-2] < most <= found[-1]
    assert 3 <= len(found) <= 11


def test_a_picture_is_well_formed() -> None:
    line = Line(name="a < b", points=[(0.0, 1.0), (1.5, 3.0)], colour=1)
    drawn = picture([Panel(title="title", across="x", lines=[line, line])] * 2)
    root = ElementTree.fromstring(drawn)
    texts = [one.text for one in root.iter() if one.tag.endswith("}text")]
    assert texts.count("a < b") == 4
