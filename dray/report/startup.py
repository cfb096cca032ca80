"""How each replica started: a row of what happened until its first token, and the seconds behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dray import wording
from dray.report import svg
from dray.report.charts import time_labels
from dray.report.data import JOB_LANE, Moments, Phase, ReplicaLine, ReportData
from dray.report.scale import TimeAxis

MOST_SHOWN = 24

_ROW = 28.0  # pixels a replica
_BAR = 12.0  # pixels of the bar of its parts
_FETCH = 4.0  # and of the fetch below it
_LATE = 2.0  # a first token after so many times the start is stated, not drawn: it would squeeze the rest
_LOOK = {  # colour class, and meaning
    "cluster": ("rest", "cluster"),
    "process": ("cached", "process"),
    "import": ("soft", "import"),
    "wait": ("exposed", "wait for weights"),
    "load": ("shard", "load"),
    "engine": ("accent", "engine"),
    "fetch": ("fetch", "fetch of the weights, beside the rest"),
    "ready at": ("ready", "ready"),
    "first token at": ("token", "first token"),
}
_OTHER = _LOOK["engine"]
_ORDER = (
    "cluster", "process", "import", "wait", "load", "engine", "",  # here stand parts that are not known
    "fetch", "hidden", "ready at", "first token at",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StartUps:
    """What the page shows: a picture with its key, a table, a note; each empty where nothing is known."""

    chart: Markup
    key: tuple[tuple[str, str], ...]
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _Start:
    """One replica's. Without moments (a report of an older version) its parts have no place in time."""

    name: str
    parts: tuple[Phase, ...]  # one after the other
    fetch: Phase | None = None
    hidden: str = ""  # the share of the fetch beside which something else went on
    moments: tuple[tuple[str, float], ...] = ()

    @property
    def ready(self) -> float:
        return self.moments[0][1]

    def cells(self, zero: float) -> dict[str, str]:
        """Its row of the table, by column."""
        cells = {part.name: _told(part.seconds) for part in self.parts}
        if self.fetch is not None:
            cells |= {"fetch": _told(self.fetch.seconds), "hidden": self.hidden}
        return cells | {name: _told(at - zero) for name, at in self.moments}


def start_ups(data: ReportData) -> StartUps:
    """The starts of the job's replicas, in seconds since the job began."""
    zero = _beginning(data)
    starts = [_start(replica, data.phases, zero) for replica in _slowest(data.replicas)]
    placed = [start for start in starts if start.moments]
    cells = [start.cells(zero) for start in starts]
    columns = _ordered(dict.fromkeys(name for row in cells for name in row))
    return StartUps(
        chart=_chart(placed, zero) if placed else Markup(""),
        key=tuple(dict.fromkeys(_LOOK.get(name, _OTHER) for name in columns if name != "hidden")),
        note=_note(columns, len(data.replicas)),
        head=tuple(wording.plain(name) for name in columns),
        rows=tuple(
            (start.name, *(row.get(name, wording.NONE) for name in columns))
            for start, row in zip(starts, cells, strict=True)
            if columns
        ),
    )


def _beginning(data: ReportData) -> float:
    """When the job began: with its first phase."""
    asked = (replica.moments.asked for replica in data.replicas if replica.moments)
    return min((*(phase.start for phase in data.phases if phase.lane == JOB_LANE), *asked), default=0.0)


def _slowest(replicas: Sequence[ReplicaLine]) -> list[ReplicaLine]:
    """The replicas that are worth a row: the last to be ready, in their order."""
    by_ready = sorted(replicas, key=lambda replica: replica.moments.ready if replica.moments else 0.0)
    last = {replica.name for replica in by_ready[-MOST_SHOWN:]}
    return [replica for replica in replicas if replica.name in last]


def _start(replica: ReplicaLine, phases: Sequence[Phase], zero: float) -> _Start:
    moments = replica.moments
    if moments is None:
        return _Start(name=replica.name, parts=tuple(_own(replica.startup, 0.0)))
    fetch = _fetch(moments, zero)
    process = Phase(name="process", start=moments.asked, end=moments.began)
    own = _own(replica.startup, moments.ready - sum(replica.startup.values()))
    return _Start(
        name=replica.name,
        parts=(*_cluster(phases, moments), process, *own),
        fetch=fetch,
        hidden=_hidden(fetch, replica.startup, moments.ready) if fetch else "",
        moments=_marks(moments),
    )


def _cluster(phases: Sequence[Phase], moments: Moments) -> list[Phase]:
    """The latest start of a cluster before the replica was asked for."""
    found = [p for p in phases if p.lane == JOB_LANE and p.name == "cluster" and p.start <= moments.asked]
    return found[-1:]


def _own(startup: Mapping[str, float], at: float) -> list[Phase]:
    """The parts that the replica timed itself, from ``at`` on; one that came in pieces is drawn as one."""
    parts = []
    for name in _ordered(startup):
        parts.append(Phase(name=name, start=at, end=at + startup[name]))
        at = parts[-1].end
    return parts


def _fetch(moments: Moments, zero: float) -> Phase | None:
    """The fetch as far as the job saw it; None where the weights were there before."""
    if moments.weights is None or moments.weights[1] <= zero:
        return None
    began, ended = moments.weights
    return Phase(name="fetch", start=max(began, zero), end=ended)


def _hidden(fetch: Phase, startup: Mapping[str, float], ready: float) -> str:
    """The share that was not waited for; not known where the engine's own processes loaded meanwhile."""
    if "load" not in startup and fetch.end > ready - startup.get("engine", 0.0):
        return wording.NONE
    return wording.share(max(fetch.seconds - _rounded(startup.get("wait", 0.0)), 0.0), fetch.seconds)


def _marks(moments: Moments) -> tuple[tuple[str, float], ...]:
    ready = ("ready at", moments.ready)
    if moments.first_token is None:
        return (ready,)
    return ready, ("first token at", max(moments.first_token, moments.ready))


def _ordered(names: Iterable[str]) -> list[str]:
    """The names in the order of a start, on the page too."""
    return sorted(names, key=lambda name: _ORDER.index(name if name in _ORDER else ""))


def _rounded(seconds: float) -> float:
    """Seconds rounded to hundredths: nothing of a start is known better."""
    return round(max(seconds, 0.0), 2)


def _told(seconds: float) -> str:
    return wording.duration(_rounded(seconds))


def _note(columns: Sequence[str], replicas: int) -> str:
    notes = []
    if "fetch" in columns:
        notes.append("The wait for weights is the part of their fetch that nothing hid, drawn in one piece.")
    if replicas > MOST_SHOWN:
        notes.append(f"Of {replicas} replicas, the {MOST_SHOWN} that were ready last are shown.")
    return " ".join(notes)


def _chart(starts: Sequence[_Start], zero: float) -> Markup:
    axis = TimeAxis([(zero, _end(starts, zero))])
    bottom = _ROW * len(starts)
    last = max(starts, key=lambda start: start.ready)
    return svg.drawing(
        "From the job's beginning to the first token",
        f"Last to be ready: {last.name}, after {_told(last.ready - zero)}.",
        *(svg.upright(place, 0, bottom, "grid") for place, _ in axis.marks()),
        *(_draw(start, _ROW * number, axis) for number, start in enumerate(starts)),
        time_labels(axis, bottom),
        height=bottom + svg.LABELS,
    )


def _end(starts: Sequence[_Start], zero: float) -> float:
    """The right edge: the last moment that is not too late."""
    ready = max(zero, *(start.ready for start in starts))
    latest = zero + _LATE * (ready - zero)
    return max(ready, *(at for start in starts for _, at in start.moments if at <= latest))


def _draw(start: _Start, y: float, axis: TimeAxis) -> Markup:
    top = y + 5
    marks = [svg.text(wording.clip(start.name, 13), -8, top + 10, "name", "end")]
    marks.extend(_bar(part, top, _BAR, axis) for part in start.parts)
    if start.fetch is not None:
        marks.append(_bar(start.fetch, top + _BAR + 2, _FETCH, axis))
    marks.append(svg.upright(axis.x(start.ready), top - 2, top + _BAR + 2, "ready"))
    for name, at in start.moments[1:]:
        if at <= axis.stretches[0].end:
            hint = f"{name} {_told(at - axis.stretches[0].start)}"
            marks.append(svg.dot(axis.x(at), top + _BAR / 2, 4, "token", hint))
    return Markup("").join(marks)


def _bar(part: Phase, y: float, height: float, axis: TimeAxis) -> Markup:
    colour, _ = _LOOK.get(part.name, _OTHER)
    hint = f"{wording.plain(part.name)}, {_told(part.seconds)}"
    return svg.bar(axis.x(part.start), axis.x(part.end), y, height, f"{colour} gap", hint, thin=0.2)
