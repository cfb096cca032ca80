"""Dollars of a run, by what they pay for."""

from __future__ import annotations

from dataclasses import dataclass

from dray.planner.cost.run_time import RunTime

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Dollars. ``idle`` pays for devices of the machines that no replica uses."""

    work: float
    cold_start: float
    tail: float
    interrupted: float
    idle: float

    @property
    def total(self) -> float:
        """Dollars of the whole run."""
        return self.work + self.cold_start + self.tail + self.interrupted + self.idle


def bill_of(time: RunTime, *, machines: int, hourly: float, used: float) -> Bill:
    """The bill of ``machines`` at ``hourly`` dollars each, of whose devices the share ``used`` works."""
    rate = machines * hourly / _HOUR
    return Bill(
        work=time.work * rate * used,
        cold_start=time.cold_start * rate * used,
        tail=time.tail * rate * used,
        interrupted=time.interrupted * rate * used,
        idle=time.total * rate * (1.0 - used),
    )
