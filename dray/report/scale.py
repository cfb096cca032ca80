"""Scales and ticks: where values go on an axis, and which of them get a label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_BREAK_SHARE = 0.25  # a pause longer than this share of the running time is folded
_BREAK_SECONDS = 60.0  # and only if it is longer than this
_BREAK_WIDTH = 3.0  # per cent of the axis that a folded pause takes


def nice_step(span: float, target: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts ``span`` into at most ``target`` parts."""
    if span <= 0:
        return 1.0
    raw = span / target
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, target: int = 5) -> list[float]:
    """Round values from ``low`` to ``high``, about ``target`` of them."""
    step = nice_step(high - low, target)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def clock_ticks(seconds: float) -> list[float]:
    """About six round durations from 0 to ``seconds``: in steps that people count time in."""
    raw = seconds / 6
    if raw <= 1:
        return ticks(0, seconds, 6)
    step = next((s for s in _CLOCK_STEPS if s >= raw), 86400 * math.ceil(raw / 86400))
    return [float(n * step) for n in range(int(seconds // step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from ``low`` to ``high``; with their double and fivefold where these are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = math.log10(high / low) < 2.5
    found = [factor * 10.0**decade for decade in decades for factor in ((1, 2, 5) if few else (1,))]
    return [value for value in found if low <= value <= high]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A piece of a time axis without a long pause: moments, and where they lie in per cent."""

    start: float
    end: float
    left: float
    right: float
    pause: float
    """Seconds of pause folded before this stretch; 0 for the first."""


class TimeAxis:
    """Maps moments to per cent of the width, with long pauses folded.

    A job that was cancelled and resumed a day later is two short stretches, not a dot at either
    end: what is drawn is running time.
    """

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        self.stretches = _lay_out(_join(sorted(i for i in intervals if i[1] >= i[0])))

    @property
    def running(self) -> float:
        """Seconds drawn, pauses left out."""
        return sum(part.end - part.start for part in self.stretches)

    def x(self, moment: float) -> float:
        """Where ``moment`` lies, from 0 to 100."""
        place = 0.0
        for part in self.stretches:
            if moment < part.start:
                break
            within = (min(moment, part.end) - part.start) / max(part.end - part.start, 1e-9)
            place = part.left + within * (part.right - part.left)
        return place

    def marks(self) -> list[tuple[float, float]]:
        """Ticks as (place in per cent, seconds of running time since the start)."""
        found: list[tuple[float, float]] = []
        before = 0.0
        for part in self.stretches:
            after = before + part.end - part.start
            for tick in clock_ticks(self.running):
                if before <= tick < after or (tick == after and part is self.stretches[-1]):
                    found.append((self.x(part.start + tick - before), tick))
            before = after
        return found


def _join(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of ``intervals``, with pauses too short to fold filled."""
    merged: list[tuple[float, float]] = []
    for start, end in intervals:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    long = max(_BREAK_SECONDS, _BREAK_SHARE * sum(end - start for start, end in merged))
    joined: list[tuple[float, float]] = []
    for start, end in merged:
        if joined and start - joined[-1][1] <= long:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _lay_out(runs: list[tuple[float, float]]) -> tuple[Stretch, ...]:
    if not runs:
        return ()
    running = max(sum(end - start for start, end in runs), 1e-9)
    gap = min(_BREAK_WIDTH, 20 / len(runs)) if len(runs) > 1 else 0.0
    room = 100 - gap * (len(runs) - 1)
    parts: list[Stretch] = []
    for start, end in runs:
        left = parts[-1].right + gap if parts else 0.0
        right = left + room * (end - start) / running
        pause = start - parts[-1].end if parts else 0.0
        parts.append(Stretch(start=start, end=end, left=left, right=right, pause=pause))
    return tuple(parts)
