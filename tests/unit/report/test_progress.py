"""The line of progress."""

from __future__ import annotations

import pytest

from dray.report import progress_line
from dray.report.wording import NONE

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


def test_a_known_end_is_preferred() -> None:
    assert progress_line(finished=1, total=9, rows_per_second=1.0, seconds_left=5400).endswith(
        "1 h 30 min left"
    )
