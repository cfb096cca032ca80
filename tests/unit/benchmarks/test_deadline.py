"""What the table of deadlines says of a group of runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.deadline import Measure, _cell

pytestmark = pytest.mark.unit


def measures(*costs: float, missed: int = 0) -> list[Measure]:
    case: dict[str, Any] = {
        "name": "dray",
        "source": "recorded",
        "trace": "a",
        "seed": None,
        "most": 4,
        "tightness": 0.4,
    }
    kept = [Measure(**case, cost=cost, missed=False) for cost in costs]
    return kept + [Measure(**case, cost=9.0, missed=True)] * missed


def test_the_95th_percentile_of_few_runs_is_within_their_costs() -> None:
    assert _cell(measures(*[1.0] * 16, 1.1, 1.3)) == "1.022 (1.13, 1.30)"


@pytest.mark.parametrize(
    ("group", "told"),
    [
        (measures(1.2), "1.200 (1.20, 1.20)"),
        (measures(1.2, missed=2), "1.200 (1.20, 1.20), 2 missed"),
        (measures(missed=2), "2 missed"),
    ],
)
def test_missed_deadlines_are_told_apart(group: list[Measure], told: str) -> None:
    assert _cell(group) == told
