"""How often each shard's own worker process died or stood still, and when it may run again."""

from __future__ import annotations

import time
from collections import Counter

from dray.errors import JobBlockedError

MAX_CRASHES = 3  # of one shard's own worker process, which runs on a stable node

_ADVICE = "look at the stable nodes, then `dray resume JOB` goes on"


class Crashes:
    """Counts them for a job that has one driver. Its times are monotonic."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._rests: dict[int, float] = {}

    def died(self, number: int, told: str) -> float:
        """The shard's process died: how many seconds the shard rests before its next task.

        Raises:
            JobBlockedError: it died too often.
        """
        self._counts[number] += 1
        count = self._counts[number]
        if count > MAX_CRASHES:
            raise JobBlockedError(f"{told} {count} times; {_ADVICE}")
        pause = pause_after(count)
        self._rests[number] = time.monotonic() + pause
        return pause

    def given_up(self, number: int, told: str) -> None:
        """The shard's task stood still, and was ended.

        Raises:
            JobBlockedError: that makes too many.
        """
        self._counts[number] += 1
        if self._counts[number] > MAX_CRASHES:
            raise JobBlockedError(f"{told}; {_ADVICE}")

    def rests(self, number: int) -> bool:
        """Whether the shard may not run yet."""
        return self._rests.get(number, 0.0) > time.monotonic()

    def next_end(self, now: float) -> float:
        """When the next shard has rested; infinite where none rests."""
        return min((at for at in self._rests.values() if at > now), default=float("inf"))


def pause_after(crashes: int) -> float:
    """Seconds before a shard's next task: none after its first crash, and then longer each time.

    What ends processes takes time to pass, such as a node short of memory or a server that is restarted.
    """
    return 0.0 if crashes < 2 else 2.0**crashes
