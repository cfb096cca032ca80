"""A replica's start is drawn and told as it was; what is not known is left out."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

from dray.report import Moments, ReportData
from dray.report.startup import start_ups
from tests.support import report_jobs
from tests.support.report_rows import START

pytestmark = pytest.mark.unit


def table(data: ReportData) -> list[dict[str, str]]:
    """The rows of the table, without their dashes."""
    found = start_ups(data)
    rows = [dict(zip(("replica", *found.head), row, strict=True)) for row in found.rows]
    return [{name: cell for name, cell in row.items() if cell != "–"} for row in rows]  # noqa: RUF001


def bars(data: ReportData) -> list[dict[str, tuple[float, float]]]:
    """Where each row's bars lie along x, by the first word of their tooltip, top to bottom."""
    rows: dict[int, dict[str, tuple[float, float]]] = {}
    for mark in ET.fromstring(start_ups(data).chart).iter("rect"):
        left, width = (float(mark.attrib[name].rstrip("%")) for name in ("x", "width"))
        part = str(mark.findtext("title")).partition(",")[0]
        rows.setdefault(int(float(mark.attrib["y"]) // 28), {})[part] = (left, left + width)
    return [rows[number] for number in sorted(rows)]


def with_moments(data: ReportData, **changed: object) -> ReportData:
    """The first replica alone, some of its moments changed."""
    first = data.replicas[0]
    assert first.moments is not None
    return replace(data, replicas=(replace(first, moments=replace(first.moments, **changed)),))  # type: ignore[arg-type]


def test_the_table_has_the_seconds_of_each_part() -> None:
    zero, one = table(report_jobs.fetched())
    assert zero == {
        "replica": "replica-0", "cluster": "3.9 s", "process": "800 ms", "import": "3 s", "wait": "2 s",
        "load": "100 ms", "engine": "1 s", "fetch": "8 s", "hidden": "75%", "ready at": "10.9 s",
        "first token at": "11.3 s",
    }  # fmt: skip
    assert list(zero)[1:] == list(start_ups(report_jobs.fetched()).head)
    assert (one["wait"], one["fetch"], one["hidden"]) == ("0 s", "6 s", "100%")


def test_parts_lie_one_after_the_other_and_end_where_it_is_ready() -> None:
    data = report_jobs.fetched()
    for replica, row in zip(data.replicas, bars(data), strict=True):
        parts = [row[name] for name in ("cluster", "process", "import", "wait", "load", "engine")]
        for before, after in pairwise(parts):
            assert before[1] <= after[0] + 0.25  # the width of a part that took no time
        assert replica.moments is not None
        axis = 11.9  # seconds from the first phase to the last replica's being ready
        ready = 100 * (replica.moments.ready - START - 0.1) / axis
        assert parts[-1][1] == pytest.approx(ready, abs=0.1)
        assert row["cluster"][0] == 0


def test_rows_do_not_overlap() -> None:
    marks = list(ET.fromstring(start_ups(report_jobs.fetched()).chart).iter("rect"))
    heights = {(float(mark.attrib["y"]), float(mark.attrib["height"])) for mark in marks}
    (a, long), (b, thin), (c, _), (d, _) = sorted(heights)
    assert thin < long
    assert a + long <= b < b + thin <= c < c + long <= d


def test_the_fetch_is_drawn_where_it_was_beside_the_rest() -> None:
    drawn = bars(report_jobs.fetched())[0]["fetch"]
    assert drawn == pytest.approx((100 * 1.4 / 11.9, 100 * 9.4 / 11.9), abs=0.1)


def test_a_first_token_that_came_late_is_told_and_does_not_squeeze_the_picture() -> None:
    data = report_jobs.fetched()
    chart = ET.fromstring(start_ups(data).chart)
    assert [mark.findtext("title") for mark in chart.iter("circle")] == ["first token at 11.3 s"]
    assert table(data)[1]["first token at"] == "59.9 s"


def test_without_weights_nothing_is_said_of_them() -> None:
    found = start_ups(report_jobs.small())
    assert found.head == ("cluster", "process", "import", "engine", "ready at", "first token at")
    assert [class_ for class_, _ in found.key] == ["rest", "cached", "soft", "accent", "ready", "token"]
    assert found.note == ""


def test_weights_that_were_there_before_the_job_were_not_fetched() -> None:
    before = with_moments(report_jobs.fetched(), weights=(START - 900, START - 800))
    assert "fetch" not in table(before)[0]
    assert "fetch" not in bars(before)[0]
    another_job_began_it = with_moments(report_jobs.fetched(), weights=(START - 900, START + 4.1))
    assert table(another_job_began_it)[0]["fetch"] == "4 s"
    assert table(another_job_began_it)[0]["hidden"] == "50%"
    assert bars(another_job_began_it)[0]["fetch"][0] == 0


def test_a_wait_longer_than_the_fetch_hides_nothing() -> None:
    assert table(with_moments(report_jobs.fetched(), weights=(START + 7, START + 8)))[0]["hidden"] == "0%"


def test_what_the_engines_own_processes_waited_for_is_not_known() -> None:
    data = report_jobs.fetched()  # ready after 11 s, of which the last 1.1 built the engine
    unseen = replace(data, replicas=(replace(data.replicas[0], startup={"wait": 0.5, "engine": 1.1}),))
    assert table(with_moments(unseen, weights=(START + 1, START + 9.8)))[0]["hidden"] == "94.3%"
    assert "hidden" not in table(with_moments(unseen, weights=(START + 1, START + 10.5)))[0]


def test_without_a_first_token_the_picture_ends_with_the_last_that_is_ready() -> None:
    data = with_moments(report_jobs.small(), first_token=None)
    assert "first token at" not in table(data)[0]
    assert bars(data)[0]["engine"][1] == pytest.approx(100, abs=0.1)


def test_parts_that_are_not_known_here_are_shown_too() -> None:
    data = report_jobs.big(rows=2000, shards=8, replicas=2)
    assert start_ups(data).head == (
        "cluster", "process", "import", "wait", "load", "engine", "warm up",
        "fetch", "hidden", "ready at", "first token at",
    )  # fmt: skip
    assert "warm up" in bars(data)[0]


def test_a_kept_report_of_an_older_version_has_seconds_and_no_picture() -> None:
    kept = json.loads(report_jobs.small().to_json())
    for replica in kept["replicas"]:
        del replica["moments"]
    found = start_ups(ReportData.from_json(json.dumps(kept)))
    assert found.chart == ""
    assert (found.head, found.rows) == (("import", "engine"), (("replica-0", "3.1 s", "900 ms"),))


def test_clocks_that_disagree_draw_nothing_backwards() -> None:
    moments = Moments(
        asked=START + 4, began=START - 50, ready=START + 9, first_token=START - 40, weights=(START, START - 9)
    )
    data = with_moments(report_jobs.small(), **vars(moments))
    assert table(data)[0]["process"] == "0 s"
    assert table(data)[0]["first token at"] == "8.9 s"
    assert all(0 <= left <= right <= 100.5 for row in bars(data) for left, right in row.values())


@pytest.mark.parametrize("ready", [START - 50, START, START + 0.1])
def test_a_start_that_took_no_time_is_drawn(ready: float) -> None:
    data = with_moments(report_jobs.small(), ready=ready, first_token=None)
    assert all(0 <= left <= right <= 101 for row in bars(data) for left, right in row.values())
    assert bars(replace(data, phases=()))


def test_of_many_replicas_the_slowest_are_shown() -> None:
    found = start_ups(report_jobs.big(rows=2000, shards=8, replicas=50))
    assert [row[0] for row in found.rows] == [f"replica-{number}" for number in range(26, 50)]
    assert "Of 50 replicas, the 24 that were ready last are shown." in found.note
