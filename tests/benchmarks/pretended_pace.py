"""How the rows of a pretended replica come: its shards share its pace, and it counts when it had none."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Seconds of a replica without a shard, on average: before its first, between two, after its last.

    ``late``: seconds by which the slowest hundredth of the pretended tasks' calls was late. If they are many,
    the process that pretends the tasks was the limit.
    """

    before: float
    between: float
    after: float
    late: float = 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / max(len(found), 1)


class Sharing:
    """Replicas whose shards share their pace evenly: what each shard has had, whatever came and went."""

    def __init__(self, rows_per_second: float) -> None:
        self._pace = rows_per_second
        self._guard = threading.Lock()
        self._replicas: defaultdict[str, _Shared] = defaultdict(_Shared)
        self._began = time.monotonic()

    def begins(self, replica: str) -> None:
        """One more shard is at work on the replica."""
        self._changes(replica, 1)

    def ends(self, replica: str) -> None:
        """One shard fewer."""
        self._changes(replica, -1)

    def had(self, replica: str) -> float:
        """Rows that a shard has had which was there from the beginning: differences count."""
        with self._guard:
            return self._replicas[replica].until_now(self._pace)

    def rate(self, replica: str) -> float:
        """Rows a second of each shard, as long as none comes or goes."""
        with self._guard:
            return self._pace / max(self._replicas[replica].shards, 1)

    def _changes(self, replica: str, by: int) -> None:
        with self._guard:
            shared = self._replicas[replica]
            shared.until_now(self._pace)
            if not shared.first:
                shared.first = shared.last = shared.at
            elif not shared.shards:
                shared.between += shared.at - shared.last
            shared.shards += by

    def idle(self) -> Idle:
        """How long replicas were without a shard, on average, as the moment is."""
        with self._guard:
            shared, now = list(self._replicas.values()), time.monotonic()
        return Idle(
            before=_mean(one.first - self._began for one in shared),
            between=_mean(one.between for one in shared),
            after=_mean(now - one.last for one in shared),
        )


@dataclass
class _Shared:
    """One replica. ``rows``: that each of its shards had until ``at`` (monotonic)."""

    shards: int = 0
    rows: float = 0.0
    at: float = field(default_factory=time.monotonic)
    first: float = 0.0  # when its first shard began (monotonic), 0 before
    last: float = 0.0  # when it had a shard last
    between: float = 0.0  # seconds without one from the first to the last

    def until_now(self, pace: float) -> float:
        now = time.monotonic()
        self.rows += pace * (now - self.at) / max(self.shards, 1)
        if self.shards:
            self.last = now
        self.at = now
        return self.rows
