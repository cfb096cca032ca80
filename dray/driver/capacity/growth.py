"""How many replicas a job is to have between the fewest and the most that its user allows: arithmetic alone.

More, when shards wait: as many as dray/driver/capacity/policy.py calls useful. Fewer, at the end of the job,
when no shard waits and replicas have had no work for a while: that may last as long again, and their
machines can be given back meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.driver.capacity.policy import Situation, of_one_kind
from dray.wording import duration, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A job's shards and replicas at present.

    ``waiting`` shards are open and on no replica, ``running`` ones are on one. Of ``replicas`` that the job
    is to have, ``ready`` ones can take work; of those, ``idle`` ones have had none for a while, and
    ``unused`` ones are idle on machines that can be given back. ``work`` is what is left, in seconds of one
    replica; None while the rate is not known.
    """

    waiting: int
    running: int
    replicas: int
    ready: int
    idle: int
    unused: int
    work: float | None

    @property
    def seconds_left(self) -> float | None:
        """Until the job ends, if it stays so."""
        return None if self.work is None else self.work / max(self.ready - self.idle, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A number of replicas, and the reason for it."""

    replicas: int
    reason: str


def wanted(load: Load, now: Situation | None, *, least: int) -> Wish | None:
    """How many replicas there are to be; None where it stays as it is.

    ``now`` holds the most that there may be, and is None while nothing is known of what is left.
    """
    if load.waiting:
        return None if now is None else _more(load, now)
    spare = min(load.unused, load.replicas - least)
    if spare <= 0:
        return None
    reason = f"no shard waits, and {plural(load.unused, 'replica')} had no work for a while"
    return Wish(replicas=load.replicas - spare, reason=reason)


def _more(load: Load, now: Situation) -> Wish | None:
    count = min(of_one_kind(now), now.most, load.waiting + load.running)
    if not load.ready or count <= load.replicas:
        return None
    told = [f"{plural(load.waiting, 'shard')} wait{'s' if load.waiting == 1 else ''}"]
    told.append(f"{duration(now.work)} of one replica are left")
    told.append(f"a start takes {duration(now.cold_start)}")
    if now.deadline is not None:
        told.append(f"the deadline is in {duration(now.seconds_left)}")
    return Wish(replicas=count, reason=", ".join(told))
