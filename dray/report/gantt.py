"""The chart of where the time went: phases of the job, then a lane for each replica and its successors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from dray import wording
from dray.places import first_of
from dray.report import svg
from dray.report.charts import pauses, time_labels
from dray.report.data import JOB_LANE, Attempt, Phase, ReportData
from dray.report.scale import TimeAxis

MOST_LANES = 48
MOST_ATTEMPTS = 600
_ROW = 22.0  # pixels a row of one phase, or of a replica's phases
_BAR = 14.0  # pixels of a bar in it, of the job
_LANE_BAR = 8.0  # and of a replica
_THIN = 6.0  # pixels a track of shard attempts
_MOST_TRACKS = 6
_WAITING = frozenset(
    (
        "cluster",
        "other",
        "boot",
        "image",
        "weights",
        "engine",
        "engine_start",
        "start",
        "startup",
        "idle",
        "drained",
        "provision",
    )
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the chart: what it is called, its phases, and tracks of shard attempts below."""

    name: str
    phases: tuple[Phase, ...]
    tracks: tuple[tuple[Attempt, ...], ...] = ()

    @property
    def height(self) -> float:
        """Pixels that the row takes."""
        return _ROW + (len(self.tracks) * _THIN + 4 if self.tracks else 0.0)


def spans(data: ReportData) -> list[tuple[float, float]]:
    """All stretches of time that the report knows of."""
    width = data.measures.bucket_seconds
    return [
        *((phase.start, phase.end) for phase in data.phases),
        *((bucket.start, bucket.start + width) for bucket in data.measures.buckets),
        *((a.started, a.started + a.seconds) for a in data.attempts if a.started is not None),
    ]


def gantt(data: ReportData, axis: TimeAxis) -> Markup:
    """The chart; empty where no phase and no attempt has a place in time."""
    rows = _rows(data)
    if not rows:
        return Markup("")
    marks: list[Markup] = []
    y = 0.0
    for row in rows:
        marks.append(_draw(row, y, axis))
        y += row.height
    slowest = max(data.phases, key=lambda phase: phase.seconds, default=None)
    told = f"Longest: {wording.plain(slowest.name)}, {wording.duration(slowest.seconds)}." if slowest else ""
    return svg.drawing(
        "Where the time went",
        told,
        *(svg.upright(place, 0, y, "grid") for place, _ in axis.marks()),
        pauses(axis, y, labelled=False),
        *marks,
        time_labels(axis, y),
        height=y + svg.LABELS,
    )


def _rows(data: ReportData) -> list[Row]:
    """The job's phases by name, in order of their first start; then lanes of replicas, in natural order."""
    by_phase: dict[str, list[Phase]] = defaultdict(list)
    by_lane: dict[str, list[Phase]] = defaultdict(list)
    for phase in sorted(data.phases, key=lambda phase: phase.start):
        (by_phase[phase.name] if phase.lane == JOB_LANE else by_lane[phase.lane]).append(phase)
    lanes = drawn_lanes(data)
    tried: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in drawn_attempts(data, lanes):
        tried[first_of(attempt.replica)].append(attempt)
    return [
        *(Row(name=wording.plain(name), phases=tuple(phases)) for name, phases in by_phase.items()),
        *(
            Row(name=lane or "no replica", phases=tuple(by_lane[lane]), tracks=_tracks(tried[lane]))
            for lane in lanes
        ),
    ]


def drawn_lanes(data: ReportData) -> list[str]:
    """Replicas worth drawing, in natural order: those with attempts that were cut short, then the first."""
    placed = _placed(data)
    lanes = {first_of(attempt.replica) for attempt in placed} | {phase.lane for phase in data.phases}
    cut = {first_of(attempt.replica) for attempt in placed if not attempt.clean}
    wanted = sorted(lanes - {JOB_LANE}, key=lambda lane: (lane not in cut, _natural(lane)))
    return sorted(wanted[:MOST_LANES], key=_natural)


def drawn_attempts(data: ReportData, lanes: Iterable[str]) -> list[Attempt]:
    """Attempts of these lanes that are worth drawing: those that were cut short first, then the longest."""
    shown = set(lanes)
    found = [attempt for attempt in _placed(data) if first_of(attempt.replica) in shown]
    return sorted(found, key=lambda a: (a.clean, -a.seconds))[:MOST_ATTEMPTS]


def _placed(data: ReportData) -> list[Attempt]:
    return [attempt for attempt in data.attempts if attempt.started is not None]


def _tracks(attempts: Iterable[Attempt]) -> tuple[tuple[Attempt, ...], ...]:
    """Overlapping attempts on as few tracks as hold them; beyond six they share the last."""
    tracks: list[list[Attempt]] = []
    ends: list[float] = []
    for attempt in sorted(attempts, key=lambda a: a.started or 0.0):
        start = attempt.started or 0.0
        free = next((number for number, end in enumerate(ends) if end <= start), None)
        if free is None and len(tracks) < _MOST_TRACKS:
            tracks.append([])
            ends.append(0.0)
            free = len(tracks) - 1
        free = free if free is not None else len(tracks) - 1
        tracks[free].append(attempt)
        ends[free] = max(ends[free], start + attempt.seconds)
    return tuple(tuple(track) for track in tracks)


def _draw(row: Row, y: float, axis: TimeAxis) -> Markup:
    label = svg.text(wording.clip(row.name, 13), -8, y + _ROW / 2 + 4, "name", "end")
    parts = [label]
    parts.extend(_phase(phase, y, axis) for phase in row.phases)
    if len(row.phases) == 1 and not row.tracks:
        parts.append(_length(row.phases[0], y, axis))
    for number, track in enumerate(row.tracks):
        top = y + (17 if row.phases else 8) + number * _THIN
        parts.extend(_attempt(attempt, top, axis) for attempt in track)
    return Markup("").join(parts)


def _phase(phase: Phase, y: float, axis: TimeAxis) -> Markup:
    tone = "soft" if phase.name in _WAITING else "accent"
    where = "" if phase.lane == JOB_LANE else f"{phase.lane}: "
    hint = f"{where}{wording.plain(phase.name)}, {wording.duration(phase.seconds)}"
    height = _BAR if phase.lane == JOB_LANE else _LANE_BAR
    return svg.bar(
        axis.x(phase.start), axis.x(phase.end), y + 11 - height / 2, height, f"{tone} gap", hint, thin=0.3
    )


def _length(phase: Phase, y: float, axis: TimeAxis) -> Markup:
    """How long a phase took: after its bar, or before it, or on it, wherever there is room."""
    start, end = axis.x(phase.start), axis.x(phase.end)
    if end < 82:
        place, anchor, shift, class_ = end, "start", 6, "halo"
    elif start > 18:
        place, anchor, shift, class_ = start, "end", -6, "halo"
    else:
        place, anchor, shift, class_ = end, "end", -6, "name" if phase.name in _WAITING else "on"
    return svg.text(wording.duration(phase.seconds), svg.percent(place), y + 15, class_, anchor, shift)


def _attempt(attempt: Attempt, y: float, axis: TimeAxis) -> Markup:
    start = attempt.started or 0.0
    ended = "" if attempt.clean else f", {attempt.cause}"
    where = f" on {attempt.replica}" if attempt.replica else ""
    hint = (
        f"shard {attempt.shard}{where}: {wording.plural(attempt.rows, 'row')}, "
        f"{wording.duration(attempt.seconds)}{ended}"
    )
    class_ = "shard gap" if attempt.clean else "bad gap"
    return svg.bar(axis.x(start), axis.x(start + attempt.seconds), y, _THIN - 1, class_, hint)


def _natural(name: str) -> tuple[int, str]:
    """Names with numbers in their order: replica-2 before replica-10."""
    return len(name), name
