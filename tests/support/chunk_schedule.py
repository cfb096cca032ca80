"""A schedule of chunks with known waits, and what tests ask and answer of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.schedule import Failure, FetchRequest, Schedule, Turn

SIZE = 1_000_000  # bytes of a chunk
NOW = 1000.0
TRANSIENT = ("busy", "network", "slow", "stalled", "answer")


class Longest(random.Random):
    """Every wait is the longest that it can be."""

    def uniform(self, a: float, b: float) -> float:
        return b


def even(chunk: int) -> bool:
    return chunk % 2 == 0


def turns(home: Callable[[int], bool]) -> Callable[[int], Turn]:
    """Of two nodes, this one and "a"."""
    return lambda chunk: Turn(0, "me") if home(chunk) else Turn(1, "a")


def planned(
    chunks: int = 100, *, home: Callable[[int], bool] = lambda chunk: True, **limits: Any
) -> Schedule:
    return Schedule(
        range(chunks),
        now=NOW,
        turn=turns(home),
        limits=FetchLimits(**limits),
        rng=Longest(),
    )


def asked(schedule: Schedule, now: float = NOW) -> list[FetchRequest]:
    """All that it asks for at this moment."""
    found = []
    while (ask := schedule.next(now)) is not None:
        found.append(ask)
    return found


def one(schedule: Schedule, now: float = NOW) -> FetchRequest:
    found = asked(schedule, now)
    assert len(found) == 1, found
    return found[0]


def is_complete(schedule: Schedule) -> bool:
    """As it is now: mypy takes a value that a test has seen for the value for ever."""
    return schedule.complete


def failure_of(schedule: Schedule) -> Failure | None:
    return schedule.failure


def answered(schedule: Schedule, asks: list[FetchRequest], now: float) -> None:
    for ask in asks:
        schedule.done(ask, now, SIZE)


def having(chunks: int, *numbers: int) -> bytes:
    """The marks of a peer that has these chunks."""
    return bytes(number in numbers for number in range(chunks))
