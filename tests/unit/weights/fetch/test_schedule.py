"""Which chunk is asked of whom, and when: each decision alone, then all of them in simulated worlds."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.weights.fetch.schedule import FATAL, ORIGIN, Failure, FetchRequest, Limits, Schedule, Turn, Window

pytestmark = pytest.mark.unit

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
        limits=Limits(**limits),
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
    window = Window(Limits(first_window=4, largest_window=64))
    assert _rounds(window, [1e6, 2e6, 4e6]) == [8, 16, 32]


def test_the_window_goes_back_when_growing_brought_nothing() -> None:
    window = Window(Limits(first_window=4, largest_window=64))
    assert _rounds(window, [1e6, 2e6, 2.1e6]) == [8, 16, 8]
    assert _rounds(window, [2e6] * 7, NOW + 1000) == [8] * 7


def test_after_eight_rounds_a_little_more_is_tried() -> None:
    window = Window(Limits(first_window=8, largest_window=64))
    assert _rounds(window, [1e6, 1e6, *[1e6] * 8, 1e6]) == [16, 8, *[8] * 7, 10, 8]
    assert _rounds(window, [1e6] * 8 + [2e6], NOW + 1000)[-2:] == [10, 20]


def test_the_window_stays_within_its_limit() -> None:
    window = Window(Limits(first_window=4, largest_window=10))
    assert max(_rounds(window, [1e6 * 2**n for n in range(12)])) == 10


def test_a_busy_store_halves_the_window_once_a_second_at_most() -> None:
    window = Window(Limits(first_window=32))
    sizes = []
    for seconds in (0.0, 0.5, 0.99, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0):
        window.busy(NOW + seconds)
        sizes.append(window.size)
    assert sizes == [16, 16, 16, 8, 8, 4, 2, 2, 2, 2]


def test_only_busy_answers_halve_the_window() -> None:
    for kind in TRANSIENT:
        schedule = planned(first_window=8)
        schedule.failed(asked(schedule)[0], kind, "", NOW)
        assert schedule.window == (4 if kind == "busy" else 8), kind


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


# -- other nodes ------------------------------------------------------------------------------


def test_who_has_a_chunk_is_asked_before_the_origin() -> None:
    schedule = planned(4)
    schedule.learn({"a": having(4, 1, 2), "b": having(4, 2)}, NOW)
    sources = {ask.chunk: ask.source for ask in asked(schedule)}
    assert (sources[0], sources[1], sources[3]) == (ORIGIN, "a", ORIGIN)
    assert sources[2] in ("a", "b")


def test_peers_take_so_many_at_once_and_the_origin_goes_on_beside() -> None:
    schedule = planned(30, first_window=4, peer_window=3)
    schedule.learn({"a": having(30, *range(20))}, NOW)
    asks = asked(schedule)
    assert [ask.chunk for ask in asks if ask.source == "a"] == [0, 1, 2]
    assert [ask.chunk for ask in asks if ask.source == ORIGIN] == [20, 21, 22, 23]


def test_load_is_spread_over_the_peers() -> None:
    schedule = planned(16, peer_window=8)
    schedule.learn({"a": b"\1" * 16, "b": b"\1" * 16}, NOW)
    assert Counter(ask.source for ask in asked(schedule)) == {"a": 8, "b": 8}


def test_each_node_brings_its_own_chunks_first() -> None:
    schedule = planned(10, home=even)
    schedule.learn({"a": having(10)}, NOW)
    assert [ask.chunk for ask in asked(schedule)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("start", [NOW, 0.0])
def test_after_some_patience_it_brings_what_another_node_was_to_bring(start: float) -> None:
    schedule = Schedule(range(4), now=start, turn=turns(even), limits=Limits(patience=3.0))
    schedule.learn({"a": having(4)}, NOW)
    answered(schedule, asked(schedule, start), start + 1)
    assert asked(schedule, start + 2.9) == []
    assert [ask.chunk for ask in asked(schedule, start + 3.1)] == [1, 3]


def test_patience_with_a_chunk_begins_when_it_is_its_turn() -> None:
    """Else all nodes would bring the whole of a large model: the others are no quicker than this one."""
    schedule = planned(200, home=even, first_window=4, largest_window=4)
    schedule.learn({"a": having(200)}, NOW)
    now, asks = NOW, asked(schedule)
    while now < NOW + 10:
        assert all(ask.chunk % 2 == 0 for ask in asks)
        now += 0.5
        answered(schedule, asks, now)
        have = [number for number in range(1, 200, 2) if number < 2 * 4 * (now - NOW) / 0.5]
        schedule.learn({"a": having(200, *have)}, now)
        asks = asked(schedule, now)
        from_peer = [ask for ask in asks if ask.source == "a"]
        answered(schedule, from_peer, now)
        asks = [ask for ask in asks if ask.source == ORIGIN]


def test_a_home_node_that_brings_something_is_left_to_it() -> None:
    """All own chunks are under way at once, and the origin is slow: others come from their home still."""
    schedule = planned(40, home=even, first_window=64, patience=3.0)
    schedule.learn({"a": having(40)}, NOW)
    assert [ask.chunk for ask in asked(schedule)] == list(range(0, 40, 2))
    for second in range(1, 20):
        now = NOW + second
        schedule.learn({"a": having(40, *range(1, 2 * second, 2))}, now)
        assert {ask.source for ask in asked(schedule, now)} <= {"a"}
    assert {ask.source for ask in asked(schedule, NOW + 19 + 2.9)} <= {"a"}
    late = asked(schedule, NOW + 19 + 3.1)  # it has brought nothing for so long
    assert late[0].source == ORIGIN
    assert late[0].chunk == 39


def test_a_slow_home_node_is_stood_in_for_once_there_is_nothing_else_to_do() -> None:
    schedule = planned(10, home=even, patience=3.0)
    schedule.learn({"a": having(10)}, NOW)
    answered(schedule, asked(schedule), NOW + 1)
    brought = 0
    for tenth in range(10, 60):
        now = NOW + tenth / 10
        brought += tenth % 20 == 0  # one in two seconds
        schedule.learn({"a": having(10, *range(1, 2 * brought, 2))}, now)
        found = [ask for ask in asked(schedule, now) if ask.source == ORIGIN]
        assert bool(found) == (tenth == 41), tenth  # 3 s after it had nothing more of its own


def test_nodes_stand_in_one_after_the_other() -> None:
    schedule = Schedule([0], now=NOW, turn=lambda chunk: Turn(2, "gone"), limits=Limits(patience=3.0))
    assert asked(schedule, NOW) == []
    assert asked(schedule, NOW + 5.9) == []
    assert [ask.source for ask in asked(schedule, NOW + 6.1)] == [ORIGIN]


def test_a_peer_that_goes_is_asked_no_more() -> None:
    schedule = planned(2)
    schedule.learn({"a": b"\1\1"}, NOW)
    schedule.learn({}, NOW)
    assert {ask.source for ask in asked(schedule)} == {ORIGIN}


def test_a_peer_with_wrong_bytes_is_never_asked_again() -> None:
    schedule = planned(1)
    schedule.learn({"a": b"\1"}, NOW)
    schedule.failed(one(schedule), "corrupt", "", NOW)
    for number, peers in enumerate(({"a": b"\1"}, {}, {"a": b"\1"})):  # also when it was away meanwhile
        schedule.learn(peers, NOW)
        again = one(schedule, NOW + 10 * number)
        assert again.source == ORIGIN
        schedule.failed(again, "network", "", NOW + 10 * number)


def test_a_peer_that_fails_thrice_rests() -> None:
    schedule = planned(8, peer_strikes=3, peer_rest=30.0, home=lambda chunk: False, patience=100.0)
    schedule.learn({"a": b"\1" * 8}, NOW)
    for ask in asked(schedule)[:3]:
        schedule.failed(ask, "network", "", NOW)
    assert schedule.failure is None
    schedule.learn({"b": bytes(8)}, NOW)
    schedule.learn({"a": b"\1" * 8, "b": bytes(8)}, NOW)  # away for a moment, and no better for that
    assert asked(schedule, NOW + 29.9) == []
    assert {ask.source for ask in asked(schedule, NOW + 30.1)} == {"a"}


def test_faults_of_peers_are_not_held_against_the_origin() -> None:
    schedule = planned(1, peer_strikes=100)
    schedule.learn({"a": b"\1"}, NOW)
    for number in range(50):
        schedule.failed(one(schedule, NOW + number), "network", "", NOW + number)
    assert schedule.failure is None
    schedule.learn({}, NOW)
    assert one(schedule, NOW + 50).source == ORIGIN


def test_peers_are_not_blamed_for_the_death_of_our_own_process() -> None:
    schedule = planned(8, peer_strikes=3)
    schedule.learn({"a": b"\1" * 8}, NOW)
    assert len(asked(schedule)) == 8
    schedule.lost(NOW)
    assert [ask.source for ask in asked(schedule, NOW + 1)] == ["a"] * 8


@pytest.mark.parametrize("kind", ["room", "disk"])
def test_a_full_disk_ends_it_whoever_sent_the_bytes(kind: str) -> None:
    schedule = planned(1)
    schedule.learn({"a": b"\1"}, NOW)
    schedule.failed(one(schedule), kind, "No space left on device", NOW)
    assert schedule.failure is not None
    assert schedule.failure.kind == kind


@pytest.mark.parametrize("kind", ["replaced", "missing", "denied"])
def test_a_peer_that_has_it_no_more_is_no_failure(kind: str) -> None:
    schedule = planned(1)
    schedule.learn({"a": b"\1"}, NOW)
    schedule.failed(one(schedule), kind, "HTTP 404", NOW)
    assert schedule.failure is None
    assert not one(schedule, NOW).fresh_credentials


# -- everything at once -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class World:
    """What a simulated load meets. ``shares`` are of requests, by kind of fault."""

    seed: int
    chunks: int
    first_window: int
    largest_window: int
    latency: float
    shares: dict[str, float]
    peer_shares: dict[str, float]
    peers: int
    homes: int
    churn: float  # peers that come or go, per look
    deaths: int  # of fetch processes


@dataclass
class _Seen:
    """What the simulation knows of a peer by itself."""

    banned: bool = False
    strikes: int = 0
    rests_until: float = 0.0


@dataclass
class Simulation:
    """A clock, requests under way, and peers; checks each decision of the schedule as it is made."""

    world: World
    budget: int | None = None  # faults that one chunk meets at the origin at most; None for any number
    now: float = NOW
    in_flight: dict[int, tuple[float, FetchRequest, str]] = field(default_factory=dict)
    won: Counter[int] = field(default_factory=Counter)
    met: Counter[int] = field(default_factory=Counter)
    denied: Counter[int] = field(default_factory=Counter)
    corrupted: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        world = self.world
        self.rng = random.Random(world.seed)
        self.limits = Limits(first_window=world.first_window, largest_window=world.largest_window)
        self.schedule = Schedule(
            range(world.chunks),
            now=self.now,
            turn=turns(lambda chunk: chunk % world.homes == 0),
            limits=self.limits,
            rng=random.Random(world.seed + 1),
        )
        self.peers: dict[str, bytes] = {}
        self.seen = {f"peer-{number}": _Seen() for number in range(world.peers)}
        self.deaths = sorted(self.rng.uniform(NOW, NOW + 20) for _ in range(world.deaths))
        self.looked = float("-inf")

    def run(self) -> None:
        latest = self.now + (self.world.chunks + 1) * (self.limits.stall_seconds + 20)
        while not (self.schedule.complete or self.schedule.failure):
            assert self.now < latest, "it neither ends nor fails"
            if self.now - self.looked > 0.25:
                self._look()
            while (ask := self.schedule.next(self.now)) is not None:
                self._ask(ask)
            self._advance()

    def _look(self) -> None:
        self.looked = self.now
        for name in self.seen:
            if self.rng.random() < self.world.churn:
                if name in self.peers:
                    del self.peers[name]
                else:
                    self.peers[name] = bytes(self.rng.random() < 0.5 for _ in range(self.world.chunks))
        self.schedule.learn(self.peers, self.now)

    def _ask(self, ask: FetchRequest) -> None:
        asks = [other for _, other, _ in self.in_flight.values()]
        assert ask.number not in self.in_flight
        assert not self.won[ask.chunk], "a chunk that is there is asked for"
        assert sum(other.chunk == ask.chunk for other in asks) <= 1, "a chunk is asked for three times"
        assert ask.fresh_credentials == (self.denied[ask.chunk] > 0)
        same = [other for other in asks if other.source == ask.source]
        if ask.source == ORIGIN:
            self._ask_origin(ask, same)
        else:
            peer = self.seen[ask.source]
            assert self.peers[ask.source][ask.chunk], "a peer is asked for what it does not have"
            assert not peer.banned
            assert peer.rests_until <= self.now
            assert len(same) < self.limits.peer_window
        self.in_flight[ask.number] = (self.now + self._latency(ask), ask, self._fault(ask))

    def _ask_origin(self, ask: FetchRequest, same: list[FetchRequest]) -> None:
        largest = self.limits.largest_window
        if ask.hedge:
            assert len(same) < largest + max(2, largest // 4)
        else:
            assert len(same) < self.schedule.window <= largest

    def _latency(self, ask: FetchRequest) -> float:
        scale = self.world.latency * (0.2 if ask.source else 1.0)
        return min(0.001 + self.rng.expovariate(1 / scale), 4.0)

    def _fault(self, ask: FetchRequest) -> str:
        shares = self.world.shares if ask.source == ORIGIN else self.world.peer_shares
        kind = next((kind for kind, share in shares.items() if self.rng.random() < share), "")
        if self.budget is None or not kind or ask.source:
            return kind
        under_way = sum(
            bool(fault) for _, other, fault in self.in_flight.values() if other.chunk == ask.chunk
        )
        spent = {"corrupt": self.corrupted[ask.chunk] >= 2, "denied": self.denied[ask.chunk] >= 1}
        if self.met[ask.chunk] + under_way >= self.budget or (
            spent.get(kind) or (under_way and kind in spent)
        ):
            return ""
        return kind

    def _advance(self) -> None:
        soonest = min((at for at, _, _ in self.in_flight.values()), default=float("inf"))
        self.now = min(soonest, self.now + 0.05)
        if self.deaths and self.deaths[0] <= self.now:
            self.deaths.pop(0)
            self.met.update({ask.chunk for _, ask, _ in self.in_flight.values() if ask.source == ORIGIN})
            self.in_flight.clear()
            self.schedule.lost(self.now)
        for number in [number for number, (at, _, _) in self.in_flight.items() if at <= self.now]:
            _, ask, fault = self.in_flight.pop(number)
            self._answer(ask, fault)

    def _answer(self, ask: FetchRequest, fault: str) -> None:
        if not fault:
            won = self.schedule.done(ask, self.now, SIZE)
            self.won[ask.chunk] += won
            assert self.won[ask.chunk] == 1
            return
        self.schedule.failed(ask, fault, f"told {fault}", self.now)
        if ask.source == ORIGIN:
            self.met[ask.chunk] += 1
            if not self.won[ask.chunk]:
                self.denied[ask.chunk] += fault == "denied"
                self.corrupted[ask.chunk] += fault == "corrupt"
        elif not self.won[ask.chunk]:
            self._strike(self.seen[ask.source], fault)

    def _strike(self, peer: _Seen, fault: str) -> None:
        peer.banned |= fault == "corrupt"
        peer.strikes += 1
        if peer.strikes >= self.limits.peer_strikes:
            peer.strikes, peer.rests_until = 0, self.now + self.limits.peer_rest


def _shares(kinds: tuple[str, ...], most: float) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(kinds), st.floats(0, most), max_size=3)


def _worlds(kinds: tuple[str, ...], most: float) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        seed=st.integers(0, 2**32),
        chunks=st.integers(0, 60),
        first_window=st.integers(2, 8),
        largest_window=st.integers(8, 32),
        latency=st.floats(0.005, 2.0),
        shares=_shares(kinds, most),
        peer_shares=_shares((*TRANSIENT, "corrupt", "denied", "missing", "replaced"), 1.0),
        peers=st.integers(0, 3),
        homes=st.integers(1, 4),
        churn=st.floats(0, 0.3),
        deaths=st.integers(0, 3),
    )


@settings(max_examples=300)
@given(world=_worlds((*TRANSIENT, "corrupt", "denied", *sorted(FATAL)), 0.9))
def test_in_any_world_each_chunk_comes_once_or_a_failure_is_named(world: World) -> None:
    simulation = Simulation(world)
    simulation.run()
    failure = simulation.schedule.failure
    if failure is None:
        assert sorted(simulation.won) == list(range(world.chunks))
        assert simulation.schedule.complete
    else:
        assert failure.kind in {*FATAL, *TRANSIENT, "corrupt", "denied", "fetcher"} - {"busy"}
        assert not simulation.won[failure.chunk]
        assert failure.source == ORIGIN


@settings(max_examples=300)
@given(world=_worlds((*TRANSIENT, "corrupt", "denied"), 1.0), budget=st.integers(0, 6))
def test_faults_below_the_limits_are_lived_with(world: World, budget: int) -> None:
    simulation = Simulation(world, budget=budget)
    simulation.run()
    assert simulation.schedule.failure is None
    assert sorted(simulation.won) == list(range(world.chunks))


# -- several nodes ----------------------------------------------------------------------------


class Cluster:
    """Nodes that bring one model at the same time, and learn four times a second what the others have."""

    def __init__(
        self,
        nodes: int,
        chunks: int,
        *,
        slowness: tuple[float, ...] = (),
        spread: tuple[float, float] = (0.8, 1.2),
        window: int = 8,
        seed: int = 0,
    ) -> None:
        limits = Limits(first_window=window, largest_window=window)
        self.spread = spread
        self.rng = random.Random(seed)
        self.slowness = slowness or (1.0,) * nodes
        self.has = [bytearray(chunks) for _ in range(nodes)]
        self.nodes = [
            Schedule(
                range(chunks),
                now=NOW,
                turn=lambda chunk, node=node: Turn(  # type: ignore[misc]
                    (node - chunk) % nodes, str(chunk % nodes)
                ),
                limits=limits,
                rng=random.Random(seed + node),
            )
            for node in range(nodes)
        ]
        self.origin = 0

    def run(self) -> float:
        """Until all have all; returns the seconds."""
        events: list[tuple[float, int, int, FetchRequest]] = []
        numbers, now = count(), NOW
        while not all(node.complete for node in self.nodes):
            for node, schedule in enumerate(self.nodes):
                schedule.learn({str(n): bytes(has) for n, has in enumerate(self.has) if n != node}, now)
                while not schedule.complete and (ask := schedule.next(now)) is not None:
                    self.origin += ask.source == ORIGIN
                    usual = 0.5 * self.slowness[node] if ask.source == ORIGIN else 0.1
                    at = now + usual * self.rng.uniform(*self.spread)
                    heapq.heappush(events, (at, next(numbers), node, ask))
            now += 0.05
            while events and events[0][0] <= now:
                at, _, node, ask = heapq.heappop(events)
                if self.nodes[node].done(ask, at, SIZE):
                    self.has[node][ask.chunk] = 1
        return now - NOW


def test_nodes_that_start_together_read_the_origin_about_once(seed: int) -> None:
    cluster = Cluster(4, 1000, seed=seed)
    seconds = cluster.run()
    assert cluster.origin < 1.1 * 1000
    assert seconds < 0.4 * 1000 * 0.5 / 8  # of what one alone takes


def test_a_slow_origin_is_read_about_once_by_nodes_that_have_all_requests_under_way(seed: int) -> None:
    """A model of few chunks: each node has asked for all of its own, and they come over 20 s."""
    cluster = Cluster(4, 120, window=64, spread=(0.0, 40.0), seed=seed)
    seconds = cluster.run()
    assert cluster.origin < 1.3 * 120
    assert seconds < 30


def test_a_slow_node_is_helped_and_the_origin_is_read_less_than_twice(seed: int) -> None:
    cluster = Cluster(4, 1000, slowness=(1.0, 1.0, 1.0, 10.0), seed=seed)
    seconds = cluster.run()
    assert cluster.origin < 2 * 1000
    assert seconds < 0.5 * 10 * 250 * 0.5 / 8  # of what it takes for its share
