"""The report as one self-contained HTML file: no scripts, no fonts, nothing loaded."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from dray import wording
from dray.places import first_of
from dray.report import charts
from dray.report.billing import BillRow, bill_rows, bill_sentences
from dray.report.data import FINISHED, JOB_LANE, Attempt, Distribution, ReplicaLine, ReportData
from dray.report.gantt import drawn_attempts, drawn_lanes, gantt, spans
from dray.report.scale import TimeAxis
from dray.report.startup import StartUps, start_ups
from dray.report.summary import Figure, figures, sentences, tone

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_LISTED = 24
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A distribution beside its percentiles in words."""

    title: str
    chart: Markup
    told: str


@dataclass(frozen=True, kw_only=True)
class View:
    """What the template prints besides the data: drawings, sentences, selections."""

    tone: str
    figures: tuple[Figure, ...]
    sentences: tuple[str, ...]
    progress: Markup
    rows: Markup
    tokens: Markup
    gantt: Markup
    gantt_key: tuple[tuple[str, str], ...]
    gantt_note: str
    starts: StartUps
    shares: Markup
    latency: tuple[Spread, ...]
    lengths: tuple[Spread, ...]
    causes: tuple[tuple[str, int], ...]
    replicas: tuple[ReplicaLine, ...]
    listed: tuple[Attempt, ...]
    bill: tuple[BillRow, ...]
    bill_told: tuple[str, ...]


def render_html(data: ReportData) -> str:
    """The report. Every string of ``data`` is escaped; numbers are written for people."""
    page = _environment().get_template("report.html.j2").render(data=data, view=_view(data))
    return "\n".join(line for line in (line.strip() for line in page.splitlines()) if line) + "\n"


def _view(data: ReportData) -> View:
    measures = data.measures
    axis = TimeAxis(spans(data))
    return View(
        tone=tone(data.state),
        figures=figures(data),
        sentences=sentences(data),
        progress=_progress(data),
        rows=charts.throughput(measures.buckets, measures.bucket_seconds, axis, charts.ROWS, "rows"),
        tokens=charts.throughput(measures.buckets, measures.bucket_seconds, axis, charts.TOKENS, "tokens"),
        gantt=gantt(data, axis),
        gantt_key=_gantt_key(data),
        gantt_note=_left_out(data),
        starts=start_ups(data),
        shares=charts.token_shares(data.tokens),
        latency=_spreads(
            ("Admission to last token", measures.latency), ("Admission to first token", measures.first_token)
        ),
        lengths=_token_spreads(
            ("Prompt tokens a row", measures.prompt_length),
            ("Completion tokens a row", measures.completion_length),
        ),
        causes=tuple(Counter(_ended_by(attempt) for attempt in data.attempts).most_common()),
        replicas=_replicas(data),
        listed=_listed(data.attempts),
        bill=bill_rows(data.account) if data.account else (),
        bill_told=bill_sentences(data.account) if data.account else (),
    )


def _progress(data: ReportData) -> Markup:
    counts = data.counts
    earlier = min(counts.skipped - counts.skipped_failed, counts.done)
    parts = (
        ("answered by earlier runs", earlier, "soft"),
        ("answered", counts.done - earlier, "accent"),
        ("errors", counts.failed, "bad"),
        ("not finished", counts.pending, "rest"),
    )
    return charts.proportions("Rows by outcome", parts, "row")


def _spreads(*named: tuple[str, Distribution]) -> tuple[Spread, ...]:
    return tuple(
        Spread(
            title=name,
            chart=charts.distribution(spread, name, wording.duration),
            told=_percentiles(
                spread,
                wording.duration(spread.p50),
                wording.duration(spread.p90),
                wording.duration(spread.p99),
            ),
        )
        for name, spread in named
        if spread.count
    )


def _token_spreads(*named: tuple[str, Distribution]) -> tuple[Spread, ...]:
    return tuple(
        Spread(
            title=name,
            chart=charts.distribution(spread, name, wording.compact, whole=True),
            told=_percentiles(
                spread, wording.count(spread.p50), wording.count(spread.p90), wording.count(spread.p99)
            )
            + f" · mean {wording.compact(spread.mean)}",
        )
        for name, spread in named
        if spread.count
    )


def _percentiles(spread: Distribution, p50: str, p90: str, p99: str) -> str:
    if spread.low == spread.high:
        return f"all {p50}"
    return f"p50 {p50} · p90 {p90} · p99 {p99}"


def _ended_by(attempt: Attempt) -> str:
    return FINISHED if attempt.clean else attempt.cause or "open"


def _replicas(data: ReportData) -> tuple[ReplicaLine, ...]:
    """The replicas of the table, in their order: those with shards cut short, then those that did most."""
    lost = {attempt.replica for attempt in data.attempts if not attempt.clean}
    worth = sorted(data.replicas, key=lambda one: (one.name not in lost, -one.rows))[:_MOST_LISTED]
    names = {one.name for one in worth}
    return tuple(one for one in data.replicas if one.name in names)


def _listed(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """The attempts of the table: those that were cut short, then the slowest."""
    return tuple(sorted(attempts, key=lambda a: (a.clean, -a.seconds)))[:_MOST_LISTED]


def _gantt_key(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Colour class and meaning of what the time chart shows of this job."""
    placed = [attempt for attempt in data.attempts if attempt.started is not None]
    key = [("accent", "working"), ("soft", "waiting, mostly for machines, weights or engines")]
    if placed:
        key.append(("shard", "a shard"))
    if any(not attempt.clean for attempt in placed):
        key.append(("bad", "a shard cut short"))
    return tuple(key)


def _left_out(data: ReportData) -> str:
    """What the time chart does not show, or nothing."""
    placed = sum(attempt.started is not None for attempt in data.attempts)
    replicas = {first_of(a.replica) for a in data.attempts if a.started is not None} | {
        p.lane for p in data.phases
    }
    lanes = drawn_lanes(data)
    drawn = len(drawn_attempts(data, lanes))
    notes = []
    if drawn < placed:
        notes.append(
            f"{wording.count(drawn)} of {wording.count(placed)} attempts are drawn: "
            "those that were cut short, then the longest."
        )
    if len(hidden := replicas - {JOB_LANE, *lanes}):
        notes.append(
            f"{len(lanes)} of {len(lanes) + len(hidden)} replicas are drawn: "
            "those with attempts that were cut short, then the first."
        )
    return " ".join(notes)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only where a page is made

    environment = Environment(
        loader=PackageLoader("dray.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in (
        "count",
        "rate",
        "duration",
        "share",
        "size",
        "moment",
        "stretch",
        "clip",
        "plain",
        "setting",
    ):
        environment.filters[name] = getattr(wording, name)
    environment.filters["ended_by"] = _ended_by
    environment.filters["options"] = _options_whole
    return environment


def _options_whole(text: str) -> Markup:
    """The text, in which no line ends within an option: a browser breaks ``--price`` after its dashes."""
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))  # noqa: S704  escaped
