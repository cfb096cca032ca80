"""Lengths of outputs that vary more and more around one mean, and the moments at which requests come."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from tests.support.slot_simulator import makespan

MEAN = 32
CAP = 10 * MEAN
"""No output is longer: a tail of the job that is longer than its middle says nothing of batching."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How lengths spread: ``at`` gives the length at a quantile, in units that are scaled to the mean."""

    name: str
    at: Callable[[float], float]

    def lengths(self, count: int, *, seed: int = 5) -> list[int]:
        """``count`` lengths with a mean of MEAN, one for each quantile, in a random order."""
        drawn = [self.at((number + 0.5) / count) for number in range(count)]
        low, high = 0.0, 100.0 * MEAN / fmean(drawn)
        for _ in range(60):  # the cap takes some of the mean: find the scale that gives it back
            middle = (low + high) / 2
            low, high = (middle, high) if fmean(_whole(drawn, middle)) < MEAN else (low, middle)
        found = _whole(drawn, high)
        random.Random(seed).shuffle(found)
        return found


def _whole(drawn: list[float], scale: float) -> list[int]:
    return [min(max(round(one * scale), 1), CAP) for one in drawn]


def _lognormal(sigma: float) -> Shape:
    normal = NormalDist()
    return Shape(name=f"lognormal {sigma}", at=lambda share: math.exp(sigma * normal.inv_cdf(share)))


SHAPES = (
    Shape(name="constant", at=lambda _share: 1.0),
    Shape(name="uniform", at=lambda share: share),
    _lognormal(0.6),
    _lognormal(0.9),
    _lognormal(1.2),
)
"""The more they vary, the later they stand."""


def variation(lengths: list[int]) -> float:
    """Their standard deviation over their mean."""
    return pstdev(lengths) / fmean(lengths)


def gain_in_steps(lengths: list[int], places: int) -> float:
    """Steps of batches that wait for their longest row, over those of places that are filled at once."""
    batches = [lengths[start : start + places] for start in range(0, len(lengths), places)]
    return sum(map(max, batches)) / makespan(lengths, places)


def arrivals(count: int, rate: float, *, seed: int = 7) -> list[float]:
    """Seconds at which ``count`` requests come: a Poisson process, whose last request comes at count / rate.

    The gaps are the same at every rate, but for their scale.
    """
    rng = random.Random(seed)
    moments, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(1.0)
        moments.append(now)
    scale = count / rate / now
    return [moment * scale for moment in moments]
