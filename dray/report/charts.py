"""The charts of rates and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dray import wording
from dray.report import svg
from dray.report.data import Bucket, Distribution, Tokens
from dray.report.scale import TimeAxis, log_ticks, ticks

_PLOT = 130.0  # height of a plot in pixels
_MOST_BARS = 72
_HEADROOM = 1.06
_LABEL_ROOM = 1.3  # room above the bars of a distribution for the names of its percentiles


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A part of stacked bars: its name, its colour class, and its amount in a bucket."""

    name: str
    class_: str
    amount: Callable[[Bucket], int]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One bar over time: the moments it spans, and the buckets in it."""

    start: float
    end: float
    buckets: tuple[Bucket, ...]

    def rate(self, *layers: Layer) -> float:
        """What ``layers`` amount to in a second."""
        return sum(layer.amount(bucket) for layer in layers for bucket in self.buckets) / (
            self.end - self.start
        )


ROWS = (
    Layer(name="answered", class_="accent", amount=lambda bucket: bucket.rows - bucket.failed),
    Layer(name="error", class_="bad", amount=lambda bucket: bucket.failed),
)
TOKENS = (
    Layer(name="completion", class_="accent", amount=lambda bucket: bucket.completion),
    Layer(name="prompt", class_="soft", amount=lambda bucket: bucket.prompt),
)


def throughput(
    buckets: Sequence[Bucket], width: float, axis: TimeAxis, layers: Sequence[Layer], unit: str
) -> Markup:
    """Bars over time, stacked from ``layers``, in ``unit`` per second; empty where all is zero."""
    columns = _columns(buckets, width, axis)
    highest = max((column.rate(*layers) for column in columns), default=0.0)
    if not highest:
        return Markup("")
    top = highest * _HEADROOM
    return svg.drawing(
        f"{unit} per second over time",
        f"Highest rate: {wording.rate(highest)} {unit}/s.",
        _rate_axis(top),
        *(_stack(column, axis, layers, unit, top) for column in columns),
        pauses(axis, _PLOT),
        time_labels(axis, _PLOT),
        height=_PLOT + svg.LABELS,
    )


def distribution(
    spread: Distribution, name: str, show: Callable[[float], str], *, whole: bool = False
) -> Markup:
    """Bars of how often a value occurs, with the percentiles marked; empty where all values are equal.

    ``whole`` values are numbers of something.
    """
    if spread.low == spread.high:
        return Markup("")
    top = max(spread.counts) * _LABEL_ROOM
    place = _placer(spread)
    bars: list[Markup] = []
    for number, count in enumerate(spread.counts):
        low, high = spread.edges[number], spread.edges[number + 1]
        if count:
            tail = number == len(spread.counts) - 1 and spread.high > high
            reach = f"{show(low)} and more" if tail else f"{show(low)} to {show(high)}"
            hint = f"{reach}: {wording.plural(count, 'row')}"
            height = max(_PLOT * count / top, 1.0)
            bars.append(svg.bar(place(low), place(high), _PLOT - height, height, "accent gap", hint))
    marks = [
        _percentile(label, place(value), number)
        for number, (label, value) in enumerate(_marked(spread, show))
    ]
    spoken = ", ".join(f"{label} {show(value)}" for label, value in _percentiles(spread))
    return svg.drawing(
        name,
        f"{wording.plural(spread.count, 'row')}: {spoken}.",
        *bars,
        *marks,
        svg.x_axis([(place(value), label) for value, label in _value_labels(spread, show, whole)], _PLOT),
        height=_PLOT + svg.LABELS,
    )


def token_shares(tokens: Tokens) -> Markup:
    """One bar: prompt tokens computed, prompt tokens from the cache, completion tokens."""
    parts = (
        ("prompt, computed", tokens.prompt - tokens.cached, "soft"),
        ("prompt, from the cache", tokens.cached, "cached"),
        ("completion", tokens.completion, "accent"),
    )
    return proportions("Tokens by origin", parts, "token")


def proportions(title: str, parts: Sequence[tuple[str, int, str]], noun: str) -> Markup:
    """One bar cut in proportion to its parts: name, amount, colour class. ``noun`` is what is counted."""
    whole = sum(amount for _, amount, _ in parts) or 1
    left = 0.0
    bars: list[Markup] = []
    for name, amount, class_ in parts:
        right = left + 100 * amount / whole
        if amount:
            hint = f"{name}: {wording.plural(amount, noun)} ({wording.share(amount, whole)})"
            bars.append(svg.bar(left, right, 0, 12, f"{class_} gap", hint, thin=0.4))
        left = right
    spoken = ", ".join(f"{name} {wording.share(amount, whole)}" for name, amount, _ in parts if amount)
    return svg.drawing(title, spoken, *bars, height=12)


def pauses(axis: TimeAxis, bottom: float, *, labelled: bool = True) -> Markup:
    """A dashed line where a long pause is folded, saying how long it was."""
    parts: list[Markup] = []
    for before, after in zip(axis.stretches, axis.stretches[1:], strict=False):
        middle = (before.right + after.left) / 2
        parts.append(svg.upright(middle, 0, bottom, "fold"))
        if labelled:
            anchor, shift = ("end", -5) if middle > 75 else ("start", 5)
            label = f"{wording.duration(after.pause)} pause"
            parts.append(svg.text(label, svg.percent(middle), 10, "halo", anchor, shift))
    return Markup("").join(parts)


def time_labels(axis: TimeAxis, bottom: float) -> Markup:
    """The time axis: running time since the start."""
    return svg.x_axis([(place, wording.duration(seconds)) for place, seconds in axis.marks()], bottom)


def _stack(column: Column, axis: TimeAxis, layers: Sequence[Layer], unit: str, top: float) -> Markup:
    left, right = axis.x(column.start), axis.x(column.end)
    amounts = [(layer, column.rate(layer)) for layer in layers]
    hint = ", ".join(f"{layer.name} {wording.rate(amount)} {unit}/s" for layer, amount in amounts if amount)
    bars: list[Markup] = []
    y = _PLOT
    for layer, amount in amounts:
        if amount:
            height = _PLOT * amount / top
            y -= height
            bars.append(svg.bar(left, right, y, height, f"{layer.class_} gap"))
    shield = svg.bar(left, right, 0, _PLOT, "shield", hint)  # the tooltip of the whole column
    return Markup("").join([*bars, shield])


def _columns(buckets: Sequence[Bucket], width: float, axis: TimeAxis) -> list[Column]:
    """Buckets joined until few enough cover the running time: bars read better than needles.

    Each stretch of the axis starts afresh at its first bucket, so no bar reaches over a pause; a
    short rest at the end of a stretch joins the bar before it.
    """
    joined = max(math.ceil(axis.running / width / _MOST_BARS), 1) if buckets else 1
    columns: list[Column] = []
    for part in axis.stretches:
        mine = [bucket for bucket in buckets if part.start <= bucket.start + width / 2 <= part.end]
        if not mine:
            continue
        end = mine[-1].start + width
        whole = max(round((end - mine[0].start) / (joined * width)), 1)
        cut: list[list[Bucket]] = [[] for _ in range(whole)]
        for bucket in mine:
            cut[min(round((bucket.start - mine[0].start) / width) // joined, whole - 1)].append(bucket)
        for number, inside in enumerate(cut):
            start = mine[0].start + number * joined * width
            stop = end if number == whole - 1 else start + joined * width
            columns.append(Column(start=start, end=stop, buckets=tuple(inside)))
    return [column for column in columns if column.buckets]


def _rate_axis(top: float) -> Markup:
    marks = [value for value in ticks(0, top, 5) if value > 0]
    return svg.y_axis((_PLOT - _PLOT * value / top, wording.compact(value)) for value in marks)


def _placer(spread: Distribution) -> Callable[[float], float]:
    low, high = spread.edges[0], spread.edges[-1]
    if spread.scale == "linear":
        return lambda value: 100 * (value - low) / (high - low)
    decades = math.log(high / low)
    return lambda value: 100 * math.log(max(value, low) / low) / decades


def _value_labels(spread: Distribution, show: Callable[[float], str], whole: bool) -> list[tuple[float, str]]:
    """Ticks and their labels, no two of which read the same."""
    low, high = spread.edges[0], spread.edges[-1]
    values = log_ticks(low, high) if spread.scale == "log" else ticks(low, high, 6)
    if whole:
        values = [value for value in values if value == round(value)]
        if len({show(value) for value in values}) < len(values):
            show = wording.count
    return [
        (value, show(value))
        for before, value in zip([None, *values], values, strict=False)
        if before is None or show(before) != show(value)
    ]


def _marked(spread: Distribution, show: Callable[[float], str]) -> list[tuple[str, float]]:
    """The percentiles, those that read the same under one name."""
    names: dict[str, list[tuple[str, float]]] = {}
    for label, value in _percentiles(spread):
        names.setdefault(show(value), []).append((label, value))
    return [(", ".join(label for label, _ in same), same[0][1]) for same in names.values()]


def _percentiles(spread: Distribution) -> tuple[tuple[str, float], ...]:
    return (("p50", spread.p50), ("p90", spread.p90), ("p99", spread.p99))


def _percentile(label: str, place: float, number: int) -> Markup:
    """A marked percentile; labels step down so that near ones do not cover each other."""
    y = 8 + 12 * number
    anchor, shift = ("end", -4) if place > 85 else ("start", 4)
    line = svg.upright(place, y - 8, _PLOT, "mark")
    return line + svg.text(label, svg.percent(place), y, "halo", anchor, shift)
