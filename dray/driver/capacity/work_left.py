"""How much of a job is done and left, in units of predicted cost: rows differ, and so do shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dray.store import Shard, ShardState

ANSWER_BYTES = 800
"""What an answer costs beside its request, in bytes of requests: some 200 tokens of 4 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Units of cost, and shards that are open: on no replica, or on one."""

    left: float
    waiting: int
    running: int


def work_of(shards: Sequence[Shard], now: float) -> Work:
    """What shards come to; ``now`` is the store's time. A row costs the mean of its shard."""
    whole = [one for one in shards if one.state is not ShardState.SPLIT]
    leased = [one for one in whole if one.is_leased(now)]
    unfinished = [one for one in whole if one.state is not ShardState.DONE]
    return Work(
        left=sum(_cost(one) * _share_left(one) for one in unfinished),
        waiting=len(unfinished) - len(leased),
        running=len(leased),
    )


def _cost(shard: Shard) -> float:
    return float(shard.length + ANSWER_BYTES * shard.rows)


def _share_left(shard: Shard) -> float:
    return max(shard.remaining, 0) / shard.rows if shard.rows else 0.0


class Rate:
    """Units that one replica answers in a second: what was done, over the replicas that were there for it.

    It counts from the first answers on: what led to those began at an unknown time. Older looks count for
    less, by half each ``half_life`` seconds.
    """

    def __init__(self, half_life: float = 600.0) -> None:
        self._half_life = half_life
        self._done = self._replica_seconds = 0.0
        self._left: float | None = None
        self._at = 0.0
        self._answering = False

    def look(self, left: float, working: int, now: float | None = None) -> None:
        """``left`` units are left, and so many replicas have worked since the last look."""
        now = time.monotonic() if now is None else now
        if self._answering and self._left is not None and now > self._at:
            fade = 0.5 ** ((now - self._at) / self._half_life)
            self._done = self._done * fade + max(self._left - left, 0.0)
            self._replica_seconds = self._replica_seconds * fade + working * (now - self._at)
        self._answering = self._answering or (self._left is not None and left < self._left)
        self._left, self._at = left, now

    @property
    def units(self) -> float | None:
        """Units per second of one replica; None before the first answers."""
        return self._done / self._replica_seconds if self._done and self._replica_seconds else None
