"""All decisions of a load at once, in simulated worlds of faults and peers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.schedule import FATAL, ORIGIN, FetchRequest, Schedule
from tests.support.chunk_schedule import (
    NOW,
    SIZE,
    TRANSIENT,
    turns,
)

pytestmark = pytest.mark.unit


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
        self.limits = FetchLimits(first_window=world.first_window, largest_window=world.largest_window)
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


@pytest.mark.heavy(one_of=3)
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


@pytest.mark.heavy(one_of=3)
@settings(max_examples=300)
@given(world=_worlds((*TRANSIENT, "corrupt", "denied"), 1.0), budget=st.integers(0, 6))
def test_faults_below_the_limits_are_lived_with(world: World, budget: int) -> None:
    simulation = Simulation(world, budget=budget)
    simulation.run()
    assert simulation.schedule.failure is None
    assert sorted(simulation.won) == list(range(world.chunks))
