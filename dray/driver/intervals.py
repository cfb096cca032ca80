"""How often the driver does what: one table for its one thread. All values are seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, get_args

LOOK_SHARE = 20
"""A pause is at least so many times as long as the look at all shards before it took."""


Duty = Literal[
    "notices", "stop_signals", "lost", "lease", "progress", "scale", "idle", "reach", "spool", "account"
]
"""What the driver's thread does again and again, at the interval of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Seconds between two times at which the driver does each of these."""

    step: float = 0.2
    """Wait at most so long for a shard task to end, before everything else is looked at."""
    status: float = 1.0
    """Ask a replica how it is."""
    lost: float = 0.2
    """Read which replicas shard tasks have lost: those are asked at once."""
    notices: float = 1.0
    """Ask for notices of nodes' ends."""
    stop_signals: float = 1.0
    """Read whether the job is to stop."""
    lease: float = 15.0
    """Renew the driver's lease: a write, also while there is nothing else to write."""
    progress: float = 1.0
    """Read how far the job is."""
    shards: float = 5.0
    """Read which shards are open, while no task ends."""
    idle: float = 5.0
    """Look for replicas without work, and take one for idle after so long."""
    scale: float = 2.0
    """Look whether the job is to have more replicas, or fewer, where it may."""
    grow: float = 5.0
    """Ask for more replicas when shards have waited for so long."""
    shrink: float = 20.0
    """Take a replica for one too many at the job's end when it has had no work for so long."""
    missing: float = 600.0
    """Go on without a replica that has found no place for so long; ask for it again after as long."""
    publish: float = 5.0
    """Tell the store of replicas that are ready, though nothing changed."""
    account: float = 15.0
    """Say what the nodes did so far, in case this driver is killed; less often with many replicas."""
    reach: float = 2.0
    """Look whether the stable nodes have said what they reach."""
    spool: float = 30.0
    """Look whether shard tasks can read their requests."""
    relaunch: float = 0.2
    """Start a replica's successor; twice as long after each failure in a row, up to 30 s."""


class Schedule:
    """When each duty is due next; all are at once."""

    def __init__(self, intervals: Intervals) -> None:
        self._intervals: dict[Duty, float] = {duty: getattr(intervals, duty) for duty in get_args(Duty)}
        self._due = dict.fromkeys(self._intervals, time.monotonic())
        self._begun: set[Duty] = set()

    def begin(self) -> None:
        """A step of the driver begins."""
        self._begun.clear()

    def repeat(self) -> None:
        """What was begun in this step is due again: the store was away."""
        self._due.update(dict.fromkeys(self._begun, time.monotonic()))

    def due(self, duty: Duty) -> bool:
        """Whether it is time; the next time is one interval from now then."""
        now = time.monotonic()
        if now < self._due[duty]:
            return False
        self._due[duty] = now + self._intervals[duty]
        self._begun.add(duty)
        return True
