"""A likely value between a low and a high one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """``low`` <= ``likely`` <= ``high``."""

    likely: float
    low: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.likely <= self.high, self

    def scaled(self, factor: float) -> Interval:
        """Each bound times ``factor``, which is not negative."""
        return Interval(self.likely * factor, self.low * factor, self.high * factor)


def spanning(likely: float, *others: float) -> Interval:
    """The smallest interval that holds all of these."""
    return Interval(likely, min(likely, *others), max(likely, *others))
