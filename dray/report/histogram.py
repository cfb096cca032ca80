"""A histogram of constant size with small relative error, and its cut for drawing."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from dray.report.data import Distribution
from dray.report.scale import nice_step

_HALF = 128  # bins an octave: a bin is at most 1/128 of its value wide
_BITS = 44  # values up to 2**44 units: 20 days in units of 0.1 microsecond, and all token counts
_BINS = _HALF * (_BITS - 7) + _HALF
_BARS = 48

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Histogram:
    """Counts non-negative values, held in whole multiples of ``unit``.

    The layout is that of HdrHistogram: below 256 units every value has its own bin; above, every
    octave has 128. So percentiles are within 0.8%, whatever the range, and memory is 40 KB.
    """

    def __init__(self, unit: float = 1.0) -> None:
        self._unit = unit
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._sum = 0.0
        self._low = float("inf")
        self._high = 0.0

    def add(self, values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> None:
        """Count ``values``; those below 0 count as 0."""
        if not len(values):
            return
        self._sum += float(values.sum())
        self._low = min(self._low, float(values.min()))
        self._high = max(self._high, float(values.max()))
        self._counts += np.bincount(_bin_of(_whole(values / self._unit)), minlength=_BINS)

    def distribution(self) -> Distribution:
        """What was counted: percentiles, and at most fifty bars to draw, the last of which takes the tail."""
        total = int(self._counts.sum())
        if not total:
            return Distribution()
        p50, p90, p99 = (self._quantile(q, total) for q in (0.50, 0.90, 0.99))
        scale: Literal["linear", "log"] = "log" if p99 > 8 * p50 > 0 else "linear"
        edges = self._edges(scale, min(self._high, 1.5 * p99))
        return Distribution(
            scale=scale,
            edges=tuple(round(float(edge) * self._unit, 9) for edge in edges),
            counts=tuple(int(n) for n in self._cut(edges)),
            count=total,
            mean=self._sum / total,
            low=max(self._low, 0.0),
            high=self._high,
            p50=p50,
            p90=p90,
            p99=p99,
        )

    def _quantile(self, q: float, total: int) -> float:
        """The nearest-rank quantile: the middle of the bin that holds it, inside what was seen."""
        rank = max(int(np.ceil(q * total)), 1)
        found = int(np.searchsorted(np.cumsum(self._counts), rank))
        low, width = _bounds(np.array([found]))
        middle = float(low[0] + (width[0] - 1) / 2) * self._unit
        return min(max(middle, self._low), self._high)

    def _edges(self, scale: Literal["linear", "log"], high: float) -> Floats:
        """Where the bars begin and end, in units; whole numbers, so that no integer is cut in two."""
        ends = _bin_of(_whole(np.array([self._low, high]) / self._unit))
        low, width = _bounds(ends)
        first, last = float(low[0]), float(low[1] + width[1])
        if scale == "log":
            return np.unique(np.rint(np.geomspace(max(first, 1.0), last, _BARS + 1)))
        step = max(nice_step(last - first, _BARS), 1.0)
        return np.arange(np.floor(first / step), np.ceil(last / step) + 1) * step

    def _cut(self, edges: Floats) -> Ints:
        """Counts between ``edges``: bins that straddle one are shared out, the sum is exact."""
        bins = np.flatnonzero(self._counts)
        low, width = _bounds(bins)
        corners = np.stack([low, low + width], axis=1).ravel()
        after = np.cumsum(self._counts[bins])
        heights = np.stack([after - self._counts[bins], after], axis=1).ravel()
        below = np.rint(np.interp(edges, corners, heights)).astype(np.int64)
        below[0] = 0  # a log scale cannot reach down to 0: its first bar takes those in
        below[-1] = after[-1]  # the tail
        return np.diff(below)


def _whole(values: Floats) -> Ints:
    return np.clip(np.rint(values), 0, 2**_BITS - 1).astype(np.int64)


def _bin_of(values: Ints) -> Ints:
    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
    shift: Ints = np.maximum(exponent - 7, 0)
    return (values >> shift) + shift * _HALF


def _bounds(bins: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The lowest value of each bin, and how many values it takes in."""
    shift = np.maximum(bins // _HALF - 1, 0).astype(np.int64)
    return (bins - shift * _HALF).astype(np.int64) << shift, np.int64(1) << shift
