"""A line that is slow in all: connections share it, so fewer of them bring what more would not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dray.weights.fetch import fetcher
from dray.weights.fetch.schedule import FetchRequest, Schedule
from dray.weights.fetch.transfer import FLOOR_RATE
from tests.support.chunk_schedule import NOW, answered, asked, failure_of, planned

pytestmark = pytest.mark.unit

CHUNKS = 60
CHUNK_BYTES = 8 << 20
STEP = 0.1
HOURS = 5 * 3600.0


@dataclass
class Coming:
    """A request under way."""

    ask: FetchRequest
    began: float
    size: float = 0.0


def fetched(share: Callable[[int], float], chunks: int = CHUNKS) -> tuple[float, Schedule]:
    """Seconds until a fetch ends where each of so many connections gets ``share`` bytes a second."""
    slowest = CHUNK_BYTES / FLOOR_RATE + 2 * fetcher.STALL_SECONDS
    schedule = Schedule(range(chunks), now=0.0, rng=random.Random(1), slowest=slowest)
    coming: dict[int, Coming] = {}
    now = 0.0
    while not schedule.complete and schedule.failure is None and now < HOURS:
        while (ask := schedule.next(now)) is not None:
            coming[ask.number] = Coming(ask, now)
        piece = share(len(coming)) * STEP
        now += STEP
        for one in list(coming.values()):
            one.size += piece
            seconds = now - one.began
            if one.size >= CHUNK_BYTES:
                del coming[one.ask.number]
                schedule.done(one.ask, now, CHUNK_BYTES)
            elif seconds > fetcher.SLOW_SECONDS and one.size < seconds * FLOOR_RATE:
                del coming[one.ask.number]
                schedule.failed(one.ask, "slow", f"{one.size / seconds / 1e3:.0f} kB/s", now)
    return now, schedule


@pytest.mark.parametrize("rate", [60e3, 110e3, 210e3, 300e3, 390e3, 450e3, 700e3, 1e6])
def test_a_slow_line_brings_the_model(rate: float) -> None:
    """Within half as much again as the line takes for the bytes alone."""
    seconds, schedule = fetched(lambda count: rate / max(1, count))
    assert failure_of(schedule) is None
    assert schedule.complete
    assert seconds < 1.5 * CHUNKS * CHUNK_BYTES / rate


@pytest.mark.parametrize("rate", [40e3, 20e3])
def test_a_line_below_the_floor_of_one_connection_is_given_up(rate: float) -> None:
    seconds, schedule = fetched(lambda count: rate / max(1, count))
    failure = failure_of(schedule)
    assert failure is not None
    assert failure.kind == "slow"
    assert seconds < 180


def test_a_slow_connection_among_fast_ones_makes_the_window_no_smaller() -> None:
    """And counts among its chunk's tries: another connection is likely to be better."""
    schedule = planned(tries=2)
    asks = asked(schedule)
    answered(schedule, asks[1:], NOW + 1)
    window = schedule.window
    schedule.failed(asks[0], "slow", "", NOW + 6)
    assert schedule.window == window
    again = next(ask for ask in asked(schedule, NOW + 20) if ask.chunk == asks[0].chunk)
    schedule.failed(again, "slow", "", NOW + 26)
    failure = failure_of(schedule)
    assert failure is not None
    assert failure.kind == "slow"


def test_slow_connections_of_one_moment_make_the_window_half_as_large() -> None:
    schedule = planned(tries=2)
    asks = asked(schedule)
    for ask in asks:
        schedule.failed(ask, "slow", "", NOW + 5)
    assert schedule.window == len(asks) // 2
    assert failure_of(schedule) is None
