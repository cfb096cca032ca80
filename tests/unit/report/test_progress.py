"""The line of progress."""

from __future__ import annotations

import pytest

from dray.report import Meter, progress_line
from dray.wording import NONE

pytestmark = pytest.mark.unit


def test_a_job_under_way() -> None:
    line = progress_line(finished=1234, total=2000, failed=3, rows_per_second=310.4, tokens_per_second=21_400)
    assert line == "1,234 of 2,000 rows (61.7%) · 310 rows/s · 21.4k tokens/s · 2 s left · 3 errors"


def test_before_the_first_row_and_after_the_last() -> None:
    assert progress_line(finished=0, total=2000) == "0 of 2,000 rows (0%)"
    assert (
        progress_line(finished=5, total=5, rows_per_second=2.0, failed=1)
        == "5 of 5 rows (100%) · 2 rows/s · 1 error"
    )
    assert progress_line(finished=0, total=0) == f"0 of 0 rows ({NONE})"


def test_a_rate_of_nothing_is_said_and_promises_no_end() -> None:
    assert progress_line(finished=1, total=9, rows_per_second=0.0) == "1 of 9 rows (11.1%) · 0 rows/s"


def test_rates_are_those_of_the_last_minute() -> None:
    """1,000 rows a second for an hour, then 10: the mean since the start would still say hundreds."""
    meter = Meter()
    for second in range(3600):
        meter.pulse(second, finished=1000 * second, failed=0, total=10_000_000, tokens=5000 * second)
    base = 1000 * 3599
    for second in range(1, 62):
        pulse = meter.pulse(
            3599 + second, finished=base + 10 * second, failed=1, total=10_000_000, tokens=5000 * 3599
        )
    assert pulse.rows_per_second == pytest.approx(10)
    assert pulse.tokens_per_second == 0
    assert pulse.seconds_left == pytest.approx((10_000_000 - base - 610) / 10)


def test_one_look_is_no_rate() -> None:
    pulse = Meter().pulse(5.0, finished=3, failed=0, total=9, tokens=7)
    assert (pulse.rows_per_second, pulse.seconds_left) == (None, None)
    assert pulse.line == "3 of 9 rows (33.3%)"


def test_a_job_that_was_slow_to_look_keeps_two_looks() -> None:
    meter = Meter()
    meter.pulse(0.0, finished=0, failed=0, total=9000, tokens=0)
    assert meter.pulse(300.0, finished=600, failed=0, total=9000, tokens=0).rows_per_second == 2.0
