"""Which node brings which chunk: each decision alone, then nodes that start together."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import count

import pytest

from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.schedule import ORIGIN, FetchRequest, Schedule, Turn
from tests.support.chunk_schedule import (
    NOW,
    SIZE,
    answered,
    asked,
    even,
    having,
    one,
    planned,
    turns,
)

pytestmark = pytest.mark.unit


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


def test_a_joiner_of_a_large_cluster_holds_few_chunks_in_memory() -> None:
    """Each request has 8 MiB of its own until it is verified: of 63 nodes, 8 each would be 4 GiB."""
    schedule = planned(1000)
    schedule.learn({f"n{number}": b"\1" * 1000 for number in range(63)}, NOW)
    asks = asked(schedule)
    assert len(asks) == FetchLimits().peers_window
    schedule.done(asks[0], NOW + 1, SIZE)
    assert one(schedule, NOW + 1).source != ORIGIN


def test_each_node_brings_its_own_chunks_first() -> None:
    schedule = planned(10, home=even)
    schedule.learn({"a": having(10)}, NOW)
    assert [ask.chunk for ask in asked(schedule)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("start", [NOW, 0.0])
def test_after_some_patience_it_brings_what_another_node_was_to_bring(start: float) -> None:
    schedule = Schedule(range(4), now=start, turn=turns(even), limits=FetchLimits(patience=3.0))
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
    schedule = Schedule([0], now=NOW, turn=lambda chunk: Turn(2, "gone"), limits=FetchLimits(patience=3.0))
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
        limits = FetchLimits(first_window=window, largest_window=window)
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


@pytest.mark.heavy(one_of=3)
def test_a_slow_node_is_helped_and_the_origin_is_read_less_than_twice(seed: int) -> None:
    cluster = Cluster(4, 1000, slowness=(1.0, 1.0, 1.0, 10.0), seed=seed)
    seconds = cluster.run()
    assert cluster.origin < 2 * 1000
    assert seconds < 0.5 * 10 * 250 * 0.5 / 8  # of what it takes for its share
