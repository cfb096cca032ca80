"""How a job ended, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dray.report import Counts, ErrorCode, Measures, ReportData
from dray.report.summary import sentences
from tests.support import report_jobs

pytestmark = pytest.mark.unit


def ended(state: str, **counts: int) -> ReportData:
    return replace(report_jobs.small(), state=state, counts=Counts(**counts))


def test_an_expired_job_says_how_many_rows_came_too_late_and_offers_no_resuming() -> None:
    errors = (ErrorCode(code="expired", count=1200), ErrorCode(code="poison", count=1))
    data = replace(ended("expired", total=2000, done=799, failed=1201), measures=Measures(errors=errors))
    assert sentences(data)[0] == (
        "The job expired: its time was over for 1,200 of 2,000 rows, each with the error code expired."
    )


def test_a_cancelled_job_says_how_to_go_on() -> None:
    data = ended("cancelled", total=20, done=5, pending=15)
    assert sentences(data)[0] == (
        "The job was cancelled with 15 of 20 rows not finished; "
        "what is finished is kept, and `dray resume JOB` goes on."
    )
