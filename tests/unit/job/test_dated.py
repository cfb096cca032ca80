"""Words for a run's time in what a user asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dray.job.options.dated import dated
from dray.job.options.request import JobRequest
from dray.job_plan.request import PlanRequest

NIGHT = datetime(2026, 3, 1, 2, 5, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://bucket/{date}/*.jsonl", "s3://bucket/2026-03-01/*.jsonl"),
        ("{yesterday}-{date}-{date}", "2026-02-28-2026-03-01-2026-03-01"),
        ("out/{time}", "out/2026-03-01T02-05"),
        ("select '{yesterday}' as {day}, '{}' as {{x}}", "select '2026-02-28' as {day}, '{}' as {{x}}"),
    ],
)
def test_words_stand_for_the_time_of_the_run(text: str, said: str) -> None:
    assert dated(text, NIGHT) == said


def test_the_day_is_that_of_utc_whatever_the_zone_of_the_schedule() -> None:
    berlin = timezone(timedelta(hours=1))
    assert dated("{date} {time}", datetime(2026, 3, 1, 0, 30, tzinfo=berlin)) == "2026-02-28 2026-02-28T23-30"


def test_a_request_is_dated_where_its_run_reads_and_writes() -> None:
    request = JobRequest.of(
        ["a/{date}", "b/{yesterday}"],
        "models/{date}",
        "out/{date}",
        job_id="nightly-{date}",
        store="sqlite:///{date}.db",
        rows={
            "query": "select * from t where day = '{date}'",
            "template": "On {date}: {text}",
            "image_root": "scans/{date}",
            "audio_root": "calls/{date}",
            "video_root": "clips/{date}",
        },
    )
    found = request.dated(NIGHT)
    assert found.input == ["a/2026-03-01", "b/2026-02-28"]
    assert found.output == "out/2026-03-01"
    assert found.job_id == "nightly-2026-03-01"
    assert found.store == "sqlite:///2026-03-01.db"
    assert found.rows.query == "select * from t where day = '2026-03-01'"
    assert found.rows.template == "On {date}: {text}"  # a column of the rows
    roots = (found.rows.image_root, found.rows.audio_root, found.rows.video_root)
    assert roots == ("scans/2026-03-01", "calls/2026-03-01", "clips/2026-03-01")
    assert found.model == "models/{date}"
    assert found.recipe()["output"] == "out/2026-03-01"  # what resumes the job says the same day


def test_a_request_without_words_stays_as_it_is() -> None:
    request = JobRequest.of("in.jsonl", "m", "out")
    assert request.dated(NIGHT) == request


def test_a_plan_reads_what_its_run_would_read() -> None:
    """The command of a nightly job could not be planned as it stands."""
    request = PlanRequest.of(
        ["a/{date}", "b/{yesterday}"],
        "models/{date}",
        store="runs/{date}",
        rows={"query": "select '{date}'", "image_root": "scans/{date}"},
    )
    found = request.dated(NIGHT)
    assert found.input == ["a/2026-03-01", "b/2026-02-28"]
    assert found.store == "runs/2026-03-01"
    assert (found.rows.query, found.rows.image_root) == ("select '2026-03-01'", "scans/2026-03-01")
    assert found.model == "models/{date}"
