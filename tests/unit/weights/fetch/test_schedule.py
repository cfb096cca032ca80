"""Which chunk is asked of the origin, and when: each decision alone."""

from __future__ import annotations

import random

import pytest

from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.schedule import FATAL, ORIGIN, FetchRequest, Schedule
from dray.weights.fetch.window import Window
from tests.support.chunk_schedule import (
    NOW,
    SIZE,
    TRANSIENT,
    Longest,
    answered,
    asked,
    failure_of,
    is_complete,
    one,
    planned,
)

pytestmark = pytest.mark.unit


# -- order and window -------------------------------------------------------------------------


def test_chunks_are_asked_for_in_the_order_given() -> None:
    schedule = Schedule([3, 1, 2], now=NOW)
    asks = asked(schedule)
    assert [ask.chunk for ask in asks] == [3, 1, 2]
    assert {(ask.source, ask.hedge, ask.fresh_credentials) for ask in asks} == {(ORIGIN, False, False)}


def test_as_many_at_once_as_the_window_is_wide_and_one_more_for_each_answer() -> None:
    schedule = planned(first_window=4)
    asks = asked(schedule)
    assert len(asks) == schedule.window == 4
    answered(schedule, asks[:1], NOW + 1)
    assert one(schedule, NOW + 1).chunk == 4


def test_it_is_complete_when_every_chunk_was_answered() -> None:
    schedule = planned(3)
    asks = asked(schedule)
    answered(schedule, asks[:2], NOW + 1)
    assert not is_complete(schedule)
    answered(schedule, asks[2:], NOW + 2)
    assert is_complete(schedule)
    assert schedule.bytes_from == {ORIGIN: 3 * SIZE}
    assert schedule.next(NOW + 3) is None
    assert schedule.next(NOW + 1e6) is None  # whenever it is asked


def _rounds(window: Window, rates: list[float], now: float = NOW) -> list[int]:
    """The window's size after each round of answers that come at these rates (bytes/s)."""
    sizes = []
    window.done(now, SIZE)
    for rate in rates:
        for _ in range(window.size):
            now += SIZE / rate
            window.done(now, SIZE)
        sizes.append(window.size)
    return sizes


def test_the_window_doubles_as_long_as_that_brings_more() -> None:
    window = Window(FetchLimits(first_window=4, largest_window=64))
    assert _rounds(window, [1e6, 2e6, 4e6]) == [8, 16, 32]


def test_the_window_goes_back_when_growing_brought_nothing() -> None:
    window = Window(FetchLimits(first_window=4, largest_window=64))
    assert _rounds(window, [1e6, 2e6, 2.1e6]) == [8, 16, 8]
    assert _rounds(window, [2e6] * 7, NOW + 1000) == [8] * 7


def test_after_eight_rounds_a_little_more_is_tried() -> None:
    window = Window(FetchLimits(first_window=8, largest_window=64))
    assert _rounds(window, [1e6, 1e6, *[1e6] * 8, 1e6]) == [16, 8, *[8] * 7, 10, 8]
    assert _rounds(window, [1e6] * 8 + [2e6], NOW + 1000)[-2:] == [10, 20]


def test_the_window_stays_within_its_limit() -> None:
    window = Window(FetchLimits(first_window=4, largest_window=10))
    assert max(_rounds(window, [1e6 * 2**n for n in range(12)])) == 10


def test_a_busy_store_halves_the_window_once_a_second_at_most() -> None:
    window = Window(FetchLimits(first_window=32))
    sizes = []
    for seconds in (0.0, 0.5, 0.99, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0):
        window.busy(NOW + seconds)
        sizes.append(window.size)
    assert sizes == [16, 16, 16, 8, 8, 4, 2, 2, 2, 2]


def test_only_busy_and_slow_answers_halve_the_window() -> None:
    for kind in TRANSIENT:
        schedule = planned(first_window=8)
        schedule.failed(asked(schedule)[0], kind, "", NOW)
        assert schedule.window == (4 if kind in ("busy", "slow") else 8), kind


# -- again after a fault ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 0.25), (2, 0.5), (3, 1.0), (4, 2.0), (5, 4.0), (6, 8.0), (7, 8.0), (9, 8.0)]
)
def test_waits_grow_twofold_up_to_a_limit(failures: int, longest: float, rng: random.Random) -> None:
    for draws in (Longest(), rng):
        schedule = Schedule([0], now=NOW, rng=draws)
        now = NOW
        for _ in range(failures - 1):
            schedule.failed(one(schedule, now), "network", "", now)
            now += 8.0
        schedule.failed(one(schedule, now), "network", "", now)
        assert schedule.failure is None
        if isinstance(draws, Longest):
            assert asked(schedule, now + 0.999 * longest) == []
        assert one(schedule, now + longest).chunk == 0


def test_the_others_do_not_wait_for_one_that_failed() -> None:
    schedule = planned(first_window=1)
    schedule.failed(one(schedule), "network", "", NOW)
    assert one(schedule).chunk == 1


def test_a_busy_store_is_asked_as_long_as_anything_comes() -> None:
    schedule, now = planned(20, first_window=2), NOW
    for _ in range(18):
        first, second = sorted(asked(schedule, now), key=lambda ask: ask.chunk)
        schedule.failed(first, "busy", "HTTP 503", now)
        now += 8.0
        answered(schedule, [second], now)
    assert failure_of(schedule) is None
    while failure_of(schedule) is None and now < NOW + 1000:
        for ask in asked(schedule, now):
            schedule.failed(ask, "busy", "HTTP 503", now)
        now += 8.0
    assert schedule.failure is not None
    assert (schedule.failure.kind, schedule.failure.chunk) == ("stalled", 0)
    assert now < NOW + 18 * 8 + 120 + 3 * 8


@pytest.mark.parametrize("kind", [kind for kind in TRANSIENT if kind != "busy"])
def test_ten_tries_and_no_more(kind: str) -> None:
    schedule, now = planned(1), NOW
    for tries in range(10):
        assert schedule.failure is None, tries
        schedule.failed(one(schedule, now), kind, f"the {tries + 1}.", now)
        now += 8.0
    assert schedule.failure is not None
    assert (schedule.failure.kind, schedule.failure.chunk, schedule.failure.tries) == (kind, 0, 10)
    assert schedule.failure.detail == "the 10."
    assert asked(schedule, now) == []


@pytest.mark.parametrize("kind", sorted(FATAL))
def test_what_no_second_try_can_mend_ends_it(kind: str) -> None:
    schedule = planned()
    schedule.failed(asked(schedule)[2], kind, "so", NOW)
    assert schedule.failure is not None
    assert (schedule.failure.kind, schedule.failure.chunk, schedule.failure.tries) == (kind, 2, 1)
    assert asked(schedule, NOW + 100) == []


def test_a_denial_is_answered_with_fresh_credentials_once() -> None:
    schedule = planned(1)
    schedule.failed(one(schedule), "denied", "HTTP 403", NOW)
    assert failure_of(schedule) is None
    again = one(schedule, NOW + 1)
    assert again.fresh_credentials
    schedule.failed(again, "denied", "HTTP 403", NOW + 1)
    assert schedule.failure is not None
    assert (schedule.failure.kind, schedule.failure.tries) == ("denied", 2)


def test_wrong_bytes_thrice_are_the_origins_fault() -> None:
    schedule, now = planned(1), NOW
    for _ in range(3):
        assert schedule.failure is None
        schedule.failed(one(schedule, now), "corrupt", "", now)
        now += 8.0
    assert schedule.failure is not None
    assert (schedule.failure.kind, schedule.failure.tries) == ("corrupt", 3)


def test_nothing_at_all_for_two_minutes_ends_it() -> None:
    schedule = planned(3, first_window=2)
    first, second = asked(schedule)
    schedule.failed(second, "network", "reset", NOW + 1)
    answered(schedule, [first], NOW + 100)
    assert schedule.next(NOW + 219) is not None  # anything that comes counts
    assert failure_of(schedule) is None
    assert asked(schedule, NOW + 221) == []
    assert schedule.failure is not None
    assert (schedule.failure.kind, schedule.failure.chunk) == ("stalled", 1)
    assert schedule.failure.detail == "1 x network"


def test_what_a_dead_process_was_asked_for_is_asked_again() -> None:
    schedule = planned(8)
    before = asked(schedule)
    answered(schedule, before[:3], NOW)
    schedule.lost(NOW + 1)
    again = asked(schedule, NOW + 2)
    assert [ask.chunk for ask in again] == [3, 4, 5, 6, 7]
    assert not {ask.number for ask in again} & {ask.number for ask in before}
    assert schedule.faults == {"fetcher": 5}


# -- twice where an answer is late ------------------------------------------------------------


def _all_but_the_first(schedule: Schedule, seconds: float = 0.1) -> FetchRequest:
    """Every chunk but the first is answered, each after ``seconds``; the ask for the first."""
    late, *others = asked(schedule)
    now = NOW
    while others:
        now += seconds
        answered(schedule, others, now)
        others = asked(schedule, now)
        assert not any(ask.hedge for ask in others)
    return late


def test_an_answer_far_later_than_the_others_is_asked_for_twice() -> None:
    schedule = planned(20, first_window=8, largest_window=8)
    late = _all_but_the_first(schedule, 0.5)
    assert asked(schedule, NOW + 1.99) == []
    hedge = one(schedule, NOW + 2.01)  # four times what is usual
    assert (hedge.chunk, hedge.hedge, hedge.source) == (late.chunk, True, ORIGIN)
    assert schedule.hedges == 1
    assert asked(schedule, NOW + 9) == []  # twice, not more often
    assert schedule.done(hedge, NOW + 9, SIZE)
    assert not schedule.done(late, NOW + 10, SIZE)  # the second one counts for nothing
    assert schedule.complete


def test_a_second_is_not_late() -> None:
    """However quick the others are: a second request costs as much as the first."""
    schedule = planned(20, first_window=8, largest_window=8)
    late = _all_but_the_first(schedule, 0.01)
    assert asked(schedule, NOW + 0.99) == []
    assert one(schedule, NOW + 1.01).chunk == late.chunk


def test_nothing_is_late_before_enough_answers_say_what_is_usual() -> None:
    schedule = planned(6, hedge_samples=6)
    _late, *others = asked(schedule)
    answered(schedule, others, NOW + 0.1)
    assert asked(schedule, NOW + 100) == []


def test_all_that_are_equally_slow_are_not_late() -> None:
    schedule = planned(64, first_window=8, largest_window=8)
    now = NOW
    while asks := asked(schedule, now):
        assert not any(ask.hedge for ask in asks)
        now += 9.0
        answered(schedule, asks, now)
    assert schedule.complete


def test_few_are_asked_for_twice_at_a_time() -> None:
    schedule = planned(64, first_window=32, largest_window=32)
    answered(schedule, asked(schedule)[10:], NOW + 0.1)
    answered(schedule, asked(schedule, NOW + 0.1), NOW + 0.2)
    answered(schedule, asked(schedule, NOW + 0.2), NOW + 0.3)
    hedges = asked(schedule, NOW + 5)
    assert [ask.chunk for ask in hedges] == list(range(8))  # a quarter of the window
    answered(schedule, hedges[:2], NOW + 6)
    assert [ask.chunk for ask in asked(schedule, NOW + 6)] == [8, 9]


def test_a_second_request_that_fails_waits_like_any_other() -> None:
    """A store that is busy for a moment must not end a load whose first request is under way."""
    schedule = planned(20, first_window=8, largest_window=8)
    late = _all_but_the_first(schedule)
    now = NOW + 2
    schedule.failed(one(schedule, now), "busy", "HTTP 503", now)
    assert asked(schedule, now + 0.2) == []
    assert one(schedule, now + 0.3).hedge
    assert schedule.failure is None
    assert schedule.done(late, now + 0.4, SIZE)


def test_when_the_first_request_fails_the_second_goes_on() -> None:
    schedule = planned(20, first_window=8, largest_window=8)
    late = _all_but_the_first(schedule)
    hedge = one(schedule, NOW + 2)
    schedule.failed(late, "stalled", "", NOW + 3)
    assert asked(schedule, NOW + 2.9) == []
    assert schedule.done(hedge, NOW + 3.1, SIZE)
    assert schedule.complete


# -- servers that say when, and slow links ----------------------------------------------------


def test_an_origin_that_says_when_is_asked_nothing_before() -> None:
    schedule = planned(first_window=2)
    first, second = asked(schedule)
    schedule.failed(first, "busy", "HTTP 429", NOW + 1, after=60.0)
    answered(schedule, [second], NOW + 2)
    assert schedule.paused(NOW + 60)
    assert schedule.next(NOW + 60) is None
    assert not schedule.paused(NOW + 62)
    assert asked(schedule, NOW + 62)[0].chunk == first.chunk


def test_pauses_that_an_origin_asks_for_are_no_silence_but_end() -> None:
    schedule, now = planned(1, longest_pause=100.0), NOW
    while (ask := schedule.next(now)) is not None:
        schedule.failed(ask, "busy", "HTTP 429", now + 1, after=1e9)
        now += 110
    assert schedule.failure is not None
    assert schedule.failure.kind == "stalled"
    assert 900 < now - NOW < 1100


def test_a_request_that_holds_its_rate_is_movement() -> None:
    """Whole chunks take minutes on a slow link; a connection without bytes is given up after seconds."""
    limits = FetchLimits(first_window=2)
    schedule = Schedule(range(2), now=NOW, limits=limits, slowest=170.0)
    first, second = asked(schedule)
    assert schedule.next(NOW + 125) is None
    answered(schedule, [first], NOW + 160)
    schedule.failed(second, "slow", "", NOW + 165)
    again = one(schedule, NOW + 180)
    assert not schedule.slow(NOW + 200)
    assert schedule.slow(NOW + 215)
    assert schedule.next(NOW + 500) is None  # longer than any request lives: its process is stopped
    assert again.chunk == 1
    failure = failure_of(schedule)
    assert failure is not None and failure.kind == "stalled"
