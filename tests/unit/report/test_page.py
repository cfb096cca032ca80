"""The page is one valid, self-contained, escaped file that shows the numbers of the data."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from dray import wording
from dray.report import Attempt, Counts, Decision, Measures, Phase, ReplicaLine, ReportData, render_html
from dray.report.charts import ROWS, distribution, throughput
from dray.report.gantt import spans
from dray.report.histogram import Histogram
from dray.report.scale import TimeAxis
from tests.support import report_jobs
from tests.support.report_rows import START

pytestmark = pytest.mark.unit

JOBS = ("small", "fetched", "troubled", "resumed", "empty")
VOID = {"meta", "link", "br", "input", "img", "hr"}
CANARY = "<script>alert('x')</script>\"&{{ 7 * 7 }}"


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest) -> ReportData:
    made: ReportData = getattr(report_jobs, request.param)()
    return made


class Balance(HTMLParser):
    """Fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"


def text_of(page: str) -> str:
    return " ".join(
        re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.S)).split()
    )


def drawings(page: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, flags=re.S)]


def canaries(value: Any) -> Any:
    """The same data with every string replaced by something that must be escaped."""
    if isinstance(value, str):
        return CANARY if value not in ("linear", "log", "job") else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return type(value)(**{field.name: canaries(getattr(value, field.name)) for field in fields})
    if isinstance(value, tuple):
        return tuple(canaries(part) for part in value)
    if isinstance(value, Mapping):
        return {CANARY + str(number): canaries(part) for number, part in enumerate(value.values())}
    return value


def test_tags_match(job: ReportData) -> None:
    reader = Balance()
    reader.feed(render_html(job))
    reader.close()
    assert reader.open == []
    assert reader.seen.count("h1") == 1
    assert "script" not in reader.seen


def test_nothing_is_loaded(job: ReportData) -> None:
    page = render_html(job)
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]


def test_every_string_is_escaped() -> None:
    page = render_html(canaries(report_jobs.troubled()))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "alert('x')" not in page
    assert "{{ 7 * 7 }}" in page
    assert drawings(page)
    Balance().feed(page)


def test_pictures_are_named_and_well_formed(job: ReportData) -> None:
    for picture in drawings(render_html(job)):
        assert picture.findtext("title")
        assert picture.get("role") == "img"
        for mark in picture.iter("rect"):
            assert float(mark.attrib["height"]) >= 0
            assert 0 <= float(mark.attrib["x"].rstrip("%")) <= 100
            assert float(mark.attrib["x"].rstrip("%")) + float(mark.attrib["width"].rstrip("%")) < 101


def test_numbers_shown_are_those_of_the_data(job: ReportData) -> None:
    shown = text_of(render_html(job))
    assert f"rows finished {wording.count(job.counts.finished)}" in shown
    assert f"rows a second {wording.rate(job.rows_per_second)}" in shown
    assert f"wall time {wording.duration(job.seconds['total'])}" in shown
    assert f"errors {wording.count(job.counts.failed)}" in shown
    assert job.job_id in shown
    for error in job.measures.errors:
        assert f"{error.code} {wording.count(error.count)}" in shown
        assert all(example in shown for example in error.examples)
    for file in job.files:
        assert f"{wording.size(file.size)} {file.sha256}" in shown
    if job.tokens.total:
        assert f"completion {wording.count(job.tokens.completion)}" in shown
        assert f"in all {wording.count(job.tokens.total)}" in shown


def test_changes_of_capacity_are_listed_with_their_reasons() -> None:
    job = report_jobs.small()
    assert "Changes of capacity" not in render_html(job)
    decided = Decision(at=1090.0, line="3 replicas instead of 1: why")
    page = render_html(dataclasses.replace(job, created=1000.0, decisions=(decided,)))
    assert "<td>3 replicas instead of 1: why</td>" in page
    assert f">{wording.duration(90)}<" in page


def test_throughput_bars_add_up_to_the_rows() -> None:
    data = report_jobs.small()
    measures = data.measures
    chart = throughput(measures.buckets, measures.bucket_seconds, TimeAxis(spans(data)), ROWS, "rows")
    marks = list(ET.fromstring(chart).iter("rect"))
    bars = [mark for mark in marks if mark.attrib["class"] == "accent gap"]
    assert len(bars) == len([mark for mark in marks if mark.attrib["class"] == "shield"]) == 26
    areas = [float(bar.attrib["height"]) * float(bar.attrib["width"].rstrip("%")) for bar in bars]
    tallest = max(float(bar.attrib["height"]) for bar in bars)
    highest = max(bucket.rows for bucket in measures.buckets) / measures.bucket_seconds
    seconds = TimeAxis(spans(data)).running
    assert sum(areas) / 100 * seconds * highest / tallest == pytest.approx(2000, rel=0.01)


def test_a_distribution_has_a_bar_for_each_length_that_occurs() -> None:
    data = report_jobs.small()
    picture = next(p for p in drawings(render_html(data)) if p.findtext("title") == "Completion tokens a row")
    occur = sum(count > 0 for count in data.measures.completion_length.counts)
    assert len(list(picture.iter("rect"))) == occur
    assert [t.text for t in picture.iter("text")][:3] == ["p50", "p90", "p99"]


def _lengths(*lengths: int) -> Markup:
    found = Histogram()
    found.add(np.array(lengths))
    return distribution(found.distribution(), "Tokens", wording.compact, whole=True)


def test_lengths_are_whole_numbers_on_the_axis_and_no_label_stands_twice() -> None:
    texts = [t.text for t in ET.fromstring(_lengths(16, 16, 17, 18)).iter("text")]
    assert texts == ["p50", "p90, p99", "16", "17", "18", "19"]
    large = [t.text for t in ET.fromstring(_lengths(12_340, 12_341, 12_342)).iter("text")]
    assert "12,320" in large
    assert len(set(large)) == len(large)


def test_equal_values_are_told_and_not_drawn() -> None:
    assert _lengths(20, 20, 20) == ""


def test_the_time_chart_has_a_mark_for_each_phase_and_attempt() -> None:
    data = report_jobs.resumed()
    picture = next(p for p in drawings(render_html(data)) if p.findtext("title") == "Where the time went")
    classes = [mark.attrib["class"] for mark in picture.iter("rect")]
    assert len(classes) == len(data.phases) + len(data.attempts)
    assert classes.count("bad gap") == 2
    assert "23 h 54 min pause" in render_html(data)


def test_a_replica_and_its_successors_have_one_lane_of_the_time_chart() -> None:
    data, begin = report_jobs.small(), START
    names = ("replica-0", "replica-0~4")
    starts = [
        Phase(name="engine_start", start=begin + at, end=begin + at + 5, lane=names[0]) for at in (0, 20)
    ]
    attempts = [
        Attempt(shard=at, epoch=1, replica=name, cause="done", seconds=9, rows=3, started=begin + 10 * at)
        for at, name in enumerate(names, start=1)
    ]
    page = render_html(dataclasses.replace(data, phases=tuple(starts), attempts=tuple(attempts)))
    picture = next(p for p in drawings(page) if p.findtext("title") == "Where the time went")
    assert [mark.text for mark in picture.iter("text") if mark.get("class") == "name"] == ["replica-0"]
    assert [mark.findtext("title") for mark in picture.iter("rect")][-2:] == [
        "shard 1 on replica-0: 3 rows, 9 s",
        "shard 2 on replica-0~4: 3 rows, 9 s",
    ]


def test_of_very_many_replicas_those_are_listed_that_lost_shards_or_did_most() -> None:
    replicas = tuple(ReplicaLine(name=f"replica-{number}", rows=number) for number in range(1000))
    job = report_jobs.resumed()
    lost = dataclasses.replace(job.attempts[0], replica="replica-7")
    page = render_html(dataclasses.replace(job, replicas=replicas, attempts=(lost,)))
    table = page.partition("<h2>Replicas</h2>")[2].partition("</table>")[0]
    listed = re.findall(r'<td class="name">(replica-\d+)</td>', table)
    assert listed == ["replica-7", *(f"replica-{number}" for number in range(977, 1000))]
    assert "976 more are in the store" in text_of(page)


def test_a_job_of_512_shards_stays_small() -> None:
    page = render_html(report_jobs.big(rows=20_000))
    assert len(page.encode()) < 200_000
    assert "519 attempts at shards: 512 done, 7 SPOT" in text_of(page)
    wide = render_html(report_jobs.big(rows=20_000, replicas=64))
    assert len(wide.encode()) < 200_000
    assert "48 of 64 replicas are drawn" in wide


@pytest.mark.parametrize(("replicas", "cut"), [(200, 100), (40, 100), (200, 5), (200, 0)])
def test_the_time_chart_draws_what_it_says(replicas: int, cut: int) -> None:
    """Those that were cut short are on late replicas, where one in name order would not look."""
    lanes = [f"replica-{replicas - 1 - at % min(replicas, 40)}" for at in range(cut)]
    lanes += [f"replica-{at % replicas}" for at in range(4000 - cut)]
    attempts = tuple(
        Attempt(
            shard=at, epoch=1, replica=lane, cause="spot" if at < cut else "done", seconds=9 + at % 7, rows=3,
            started=START + at,
        )
        for at, lane in enumerate(lanes)
    )  # fmt: skip
    page = render_html(dataclasses.replace(report_jobs.small(), attempts=attempts, phases=()))
    picture = next(p for p in drawings(page) if p.findtext("title") == "Where the time went")
    classes = [mark.attrib["class"] for mark in picture.iter("rect")]
    assert classes.count("bad gap") == cut
    assert f"{wording.count(len(classes))} of 4,000 attempts are drawn" in page
    assert len(classes) > 500


def test_a_job_without_rows_says_so() -> None:
    page = render_html(report_jobs.empty())
    shown = text_of(page)
    assert "The job failed (the engine never became ready) with 40 of 40 rows not finished." in shown
    for words in (
        "no throughput to draw",
        "No tokens",
        "No row ended in an error",
        "No replica",
        "No output",
    ):
        assert words in shown
    assert len(drawings(page)) == 2  # the progress bar and the time chart


def test_a_report_of_almost_nothing_renders() -> None:
    bare = ReportData(job_id="j", state="completed", generated_at=0)
    assert "The input held no rows." in render_html(bare)
    assert "is still in progress" in render_html(dataclasses.replace(bare, state="in_progress"))


def test_error_rows_of_earlier_runs_are_no_answers() -> None:
    """An earlier run answered 50 rows and refused 50; this one answered 50 more."""
    counts = Counts(total=150, done=100, failed=50, skipped=100, skipped_failed=50)
    page = render_html(ReportData(job_id="j", state="completed", generated_at=0, counts=counts))
    assert "<title>answered by earlier runs: 50 rows" in page
    assert "<title>answered: 50 rows" in page


def test_a_report_of_error_rows_alone_renders() -> None:
    data = report_jobs.small(errors={"poison": 1.0})
    assert data.counts.done == 0
    shown = text_of(render_html(data))
    assert "0 with an answer, 2,000 with an error" in shown
    assert "Latency" not in shown


def test_resumed_and_cancelled_are_told() -> None:
    shown = text_of(render_html(report_jobs.resumed()))
    assert "was cancelled (asked for at the terminal) with 29,000 of 50,000 rows not finished" in shown
    assert "12,000 rows had been finished before this run." in shown


def test_measures_without_phases_still_draw_throughput() -> None:
    data = dataclasses.replace(report_jobs.small(), phases=(), attempts=())
    titles = [picture.findtext("title") for picture in drawings(render_html(data))]
    assert "rows per second over time" in titles
    assert "Where the time went" not in titles
    assert dataclasses.replace(data, measures=Measures()).rows_per_second is None


def test_when_the_run_was_and_when_its_job_began() -> None:
    data = dataclasses.replace(report_jobs.small(), created=60.0, started=86_400.0, ended=86_465.0)
    told = text_of(render_html(data))
    assert "1970-01-02 00:00:00 to 00:01:05 UTC · job created 1970-01-01 00:01:00 UTC" in told
    first = dataclasses.replace(data, created=86_399.0)
    assert "job created" not in text_of(render_html(first))
    assert " to 00:01:05" not in text_of(render_html(report_jobs.small()))  # kept by an earlier version


def test_no_line_ends_within_an_option() -> None:
    data = dataclasses.replace(
        report_jobs.small(), decisions=(Decision(at=0.0, line="<b> --replicas asks for more, a--b"),)
    )
    page = render_html(data)
    assert '&lt;b&gt; <span class="option">--replicas</span> asks for more, a--b' in page
    assert re.search(r"\.option \{ white-space: nowrap; \}", page)
