"""How many replicas a job is to have between the fewest and the most that its user allows: arithmetic alone.

More, when shards wait and a replica that starts works at least twice as long as its start takes. Fewer, at
the end of the job, when no shard waits and replicas have had no work for a while: that may last as long
again, and their machines can be given back meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dray.report.wording import plural

_STARTS = 2.0
"""A replica that starts works for so many times as long as its start takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A job's shards and replicas at present.

    ``waiting`` shards are open and on no replica, ``running`` ones are on one. Of ``replicas`` that the job
    is to have, ``ready`` ones can take work; of those, ``idle`` ones have had none for a while.
    ``work`` is what is left, in seconds of one replica; None while the rate is not known.
    """

    waiting: int
    running: int
    replicas: int
    ready: int
    idle: int
    work: float | None

    @property
    def seconds_left(self) -> float | None:
        """Until the job ends, if it stays so."""
        return None if self.work is None else self.work / max(self.ready - self.idle, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """So many replicas, and why."""

    replicas: int
    reason: str


def wanted(load: Load, *, least: int, most: int, start_seconds: float) -> Wish | None:
    """How many replicas there are to be; None where it stays as it is."""
    if load.waiting:
        return _more(load, most, start_seconds)
    spare = min(load.idle, load.replicas - least)
    if spare <= 0:
        return None
    reason = f"no shard waits, and {plural(load.idle, 'replica')} had no work for a while"
    return Wish(replicas=load.replicas - spare, reason=reason)


def _more(load: Load, most: int, start_seconds: float) -> Wish | None:
    if load.work is None or not load.ready:
        return None
    shards = load.waiting + load.running
    worth = math.floor(load.work / max(_STARTS * start_seconds, 0.1))
    count = min(most, shards, max(worth, load.replicas))
    if count <= load.replicas:
        return None
    reason = (
        f"{plural(load.waiting, 'shard')} wait, and a start takes {start_seconds:.0f} s of "
        f"{load.work / max(load.ready, 1):.0f} s that are left"
    )
    return Wish(replicas=count, reason=reason)
