"""Report data survives JSON, and its derived figures are honest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dray.report import Counts, Measures, ReportData, Tokens
from tests.support import report_jobs

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "make",
    [report_jobs.small, report_jobs.fetched, report_jobs.troubled, report_jobs.resumed, report_jobs.empty],
)
def test_json_round_trip(make: object) -> None:
    data = make()  # type: ignore[operator]
    assert ReportData.from_json(data.to_json()) == data


def test_keys_of_newer_versions_are_ignored() -> None:
    data = report_jobs.small()
    newer = {**json.loads(data.to_json()), "invented_later": {"x": 1}}
    assert ReportData.from_json(json.dumps(newer)) == data


def test_what_is_not_a_report_is_refused() -> None:
    with pytest.raises(ValueError, match="job_id"):
        ReportData.from_json('{"state": "completed"}')


def test_rates_cover_this_run_alone() -> None:
    data = ReportData(
        job_id="j",
        state="completed",
        generated_at=0,
        counts=Counts(total=1000, done=1000, skipped=900),
        tokens=Tokens(prompt=90_000, completion=10_000),
        seconds={"inference": 10.0},
        measures=Measures(run_rows=100, run_tokens=Tokens(prompt=9_000, completion=1_000)),
    )
    assert data.rows_per_second == 10
    assert data.tokens_per_second == 1000
    assert replace(data, seconds={}).rows_per_second is None
    assert replace(data, measures=Measures()).tokens_per_second is None
