"""Curves side by side as an SVG file, written by hand: no library for it is a dependency of dray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 380, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 16, 34, 96
_COLOURS = ("#c2410c", "#1d4ed8", "#6b7280", "#15803d")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A named curve; ``colour`` is a number of orange, blue, grey, green."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves over one axis; both axes begin at zero."""

    title: str
    across: str
    lines: Sequence[Line]


def picture(panels: Sequence[Panel]) -> str:
    """The panels from left to right."""
    width = _WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="11" fill="#1f2937">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * _WIDTH} 0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Scale:
    """Where a value of an axis stands: ``start`` is at zero, ``end`` at the last tick."""

    ticks: Sequence[float]
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.ticks[-1]


def ticks(most: float) -> list[float]:
    """From zero to at least ``most``, in a few steps of 1, 2 or 5 times a power of ten."""
    rough = most / 5
    power = 10.0 ** floor(log10(rough))
    step = power * min((one for one in (1, 2, 5, 10) if one * power >= rough), default=10)
    return [round(number * step, 9) for number in range(ceil(most / step - 1e-9) + 1)]


def _panel(panel: Panel) -> list[str]:
    points = [point for line in panel.lines for point in line.points]
    across = _Scale(ticks(max(x for x, _ in points)), _LEFT, _WIDTH - _RIGHT)
    up = _Scale(ticks(max(y for _, y in points)), _HEIGHT - _BOTTOM, _TOP)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts = [_text(middle, 18, panel.title, "middle", weight="bold")]
    parts.append(_text(middle, up.start + 32, panel.across, "middle"))
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(f'<path d="M{across.start} {y:.1f}H{across.end}" stroke="#e5e7eb"/>')
        parts.append(_text(across.start - 6, y + 4, f"{tick:g}", "end"))
    for tick in across.ticks:
        parts.append(_text(across.at(tick), up.start + 16, f"{tick:g}", "middle"))
    for number, line in enumerate(panel.lines):
        parts += _curve(line, number, across, up)
    return parts


def _curve(line: Line, number: int, across: _Scale, up: _Scale) -> list[str]:
    """The curve, a mark at each of its points, and its name under the panel."""
    colour = _COLOURS[line.colour]
    style = f'stroke="{colour}" stroke-width="2" fill="none"'
    style += ' stroke-dasharray="5 4"' if line.dashed else ""
    places = [(across.at(x), up.at(y)) for x, y in line.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    left = across.start + (number % 2) * (_WIDTH - _LEFT - _RIGHT) / 2
    below = up.start + 52 + (number // 2) * 18
    return [
        f'<path d="M{path}" {style}/>',
        *marks,
        f'<path d="M{left} {below - 4}h24" {style}/>',
        _text(left + 30, below, line.name, "start"),
    ]


def _text(x: float, y: float, text: str, anchor: str, *, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )
