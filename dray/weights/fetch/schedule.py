"""Which chunk is requested from which source, and when: decisions alone, no clock and no network.

In the order of consumption; as many at once as pays; again after a fault, with full jitter; twice where an
answer is far later than its fellows (hedged, https://research.google/pubs/the-tail-at-scale/); from another
node of the cluster rather than from the origin, where one has it or is about to have it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.window import Window

ORIGIN = ""
"""The source that always has everything; others are names of peers."""

FATAL = {"replaced", "missing", "room", "disk", "untrusted"}
_HERE = {"room", "disk"}  # of this node, whichever source sent the bytes
_DENIALS = 2  # the second try carries fresh credentials
_OUTCOMES = 16  # the last requests to the origin, by which a slow one is judged


class Turn(NamedTuple):
    """When a node may ask the origin for a chunk: 0 is its ``home``, 1 the first to stand in for that."""

    rank: int
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """One request for one chunk."""

    number: int
    chunk: int
    source: str
    hedge: bool
    fresh_credentials: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the model cannot be had."""

    kind: str
    chunk: int
    source: str
    detail: str
    tries: int


@dataclass(slots=True)
class _Chunk:
    not_before: float = 0.0
    seen: float | None = None  # when it could first have been asked of the origin
    tries: Counter[str] = field(default_factory=Counter)  # by kind of fault, at the origin
    asked: list[int] = field(default_factory=list)
    hedged: bool = False


@dataclass(slots=True)
class _Peer:
    has: bytes = b""
    moved: float = 0.0  # when it last had more than before
    strikes: int = 0
    rests_until: float = 0.0
    banned: bool = False


class Schedule:
    """Asks for the chunks in ``order``; ``turn`` says which this node is to fetch from the origin.

    ``slowest``: seconds in which a request comes or is given up, at the least rate of a connection.
    """

    def __init__(
        self,
        order: Sequence[int],
        *,
        now: float,
        turn: Callable[[int], Turn] = lambda chunk: Turn(0, ORIGIN),
        limits: FetchLimits | None = None,
        rng: random.Random | None = None,
        slowest: float = 0.0,
    ) -> None:
        self.limits = limits or FetchLimits()
        self.failure: Failure | None = None
        self.faults: Counter[str] = Counter()
        self.hedges = 0
        self.bytes_from: Counter[str] = Counter()
        self._rng = rng or random.Random()  # noqa: S311  spreads load, guards nothing
        self._turn = turn
        self._idle_since: float | None = None  # nothing of its own is left to ask for
        self._left: dict[int, _Chunk] = {chunk: _Chunk() for chunk in order}
        self._asks: dict[int, tuple[FetchRequest, float]] = {}
        self._numbers = 0
        self._peers: dict[str, _Peer] = {}
        self._window = Window(self.limits)
        self._times: deque[float] = deque(maxlen=64)
        self._begun: deque[float] = deque(maxlen=64)  # when requests began that have their answers
        self._slow: deque[bool] = deque(maxlen=_OUTCOMES)  # whether the last ones were given up as slow
        self._moved = now
        self._slowest = slowest
        self._pause_ends = now  # the origin said when to ask again

    @property
    def complete(self) -> bool:
        """Whether all chunks are there."""
        return not self._left

    @property
    def window(self) -> int:
        """Requests to the origin at once, as things are."""
        return self._window.size

    def learn(self, peers: Mapping[str, bytes], now: float) -> None:
        """Which chunks each live peer has, one byte per chunk.

        Peers not named are away; what they did is remembered.
        """
        for name in self._peers.keys() | peers.keys():
            peer, has = self._peers.setdefault(name, _Peer()), peers.get(name, b"")
            if has.count(1) > peer.has.count(1):
                peer.moved = now
            peer.has = has

    def next(self, now: float) -> FetchRequest | None:
        """What to ask for now, if anything."""
        if self.failure is not None:
            return None
        if self.slow(now):
            self._moved = now
        if self._left and now - self._moved > self._longest_silence(now):
            chunk = next(iter(self._left))
            kind = "slow" if self._slow and all(self._slow) else "stalled"
            self.failure = Failure(kind=kind, chunk=chunk, source=ORIGIN, detail=self._said(), tries=0)
            return None
        return self._fresh(now) or self._hedge(now)

    def done(self, ask: FetchRequest, now: float, size: int) -> bool:
        """An answer came and was sound; False when another one was first."""
        _, began = self._asks.pop(ask.number)
        self.bytes_from[ask.source] += size
        if ask.source == ORIGIN:
            self._times.append(now - began)
            self._begun.append(began)
            self._slow.append(False)
            self._window.done(now, size)
        self._moved = now
        return self._left.pop(ask.chunk, None) is not None

    def paused(self, now: float) -> bool:
        """Whether the origin said that it wants to be asked later."""
        return now < self._pause_ends

    def slow(self, now: float) -> bool:
        """Whether a request goes on for longer than one lives without bytes: some arrive, however slowly."""
        return any(
            self.limits.silent_seconds < now - began < self._slowest for _, began in self._asks.values()
        )

    def failed(
        self, ask: FetchRequest, kind: str, detail: str, now: float, *, after: float | None = None
    ) -> None:
        """An attempt failed; decides when and whether it is made again.

        ``after``: in how many seconds its server wants to be asked again.
        """
        self._asks.pop(ask.number)
        self.faults[kind] += 1
        chunk = self._left.get(ask.chunk)
        if chunk is None:
            return
        chunk.asked.remove(ask.number)
        chunk.hedged = False
        if ask.source != ORIGIN and kind not in _HERE:
            if kind != "fetcher":  # a process of our own
                self._strike(self._peers[ask.source], kind, now)
            return
        if kind == "slow":
            self._slow.append(True)
            if self._is_crowded():
                self._window.crowded(now, self._at_origin() + 1)
                return  # fewer at once may do: no fault of the chunk's
        if kind == "busy":
            self._window.busy(now)
            if after:
                self._pause_ends = max(self._pause_ends, now + min(after, self.limits.longest_pause))
        chunk.tries[kind] += 1
        tries = chunk.tries.total()
        chunk.not_before = now + self._rng.uniform(0, min(0.25 * 2 ** (tries - 1), self.limits.longest_wait))
        if self._final(chunk, kind):
            self.failure = Failure(kind=kind, chunk=ask.chunk, source=ask.source, detail=detail, tries=tries)

    def lost(self, now: float) -> None:
        """The fetch processes are gone: every request without an answer is to be made again."""
        for ask, _ in list(self._asks.values()):
            self.failed(ask, "fetcher", "a fetch process ended", now)

    # -- inside -----------------------------------------------------------------------------

    def _at_origin(self) -> int:
        """Requests to the origin that are under way."""
        return sum(ask.source == ORIGIN for ask, _ in self._asks.values())

    def _is_crowded(self) -> bool:
        """Whether requests share a slow line: of the last ones many were slow, and others are under way."""
        many = 2 * sum(self._slow) >= len(self._slow)
        return many and self._at_origin() > 0 and self._window.size > 1

    def _longest_silence(self, now: float) -> float:
        """Seconds without a chunk until the fetch is given up; more where the origin asks for pauses."""
        limits = self.limits
        told = self._pause_ends > self._moved and now < self._pause_ends + limits.stall_seconds / 2
        return limits.pauses_seconds if told else limits.stall_seconds

    def _final(self, chunk: _Chunk, kind: str) -> bool:
        limits = self.limits
        return (
            kind in FATAL
            or chunk.tries["denied"] >= _DENIALS
            or chunk.tries["corrupt"] >= limits.corrupt_tries
            or chunk.tries.total() - chunk.tries["busy"] >= limits.tries
        )

    def _fresh(self, now: float) -> FetchRequest | None:
        """A request for a chunk that was not asked for yet: from a peer that has it, or from the origin."""
        load = Counter(ask.source for ask, _ in self._asks.values())
        origin_free = load[ORIGIN] < self._window.size and not self.paused(now)
        usable = {n: p for n, p in self._peers.items() if p.has and not p.banned and p.rests_until <= now}
        peers_free = load.total() - load[ORIGIN] < self.limits.peers_window
        has_own = False
        for looked, (number, chunk) in enumerate(self._left.items()):
            if looked >= self.limits.lookahead or not (origin_free or (usable and peers_free)):
                return None
            has_own = has_own or self._turn(number).rank == 0
            if chunk.asked or chunk.not_before > now:
                continue
            holders = [name for name, peer in usable.items() if peer.has[number : number + 1] == b"\1"]
            if holders:
                free = [name for name in holders if load[name] < self.limits.peer_window]
                if free and peers_free:
                    return self._ask(number, chunk, self._rng.choice(free), now)
            elif origin_free and self._may_bring(number, chunk, now):
                return self._ask(number, chunk, ORIGIN, now)
        self._note_idle(now, has_own=has_own)
        return None

    def _note_idle(self, now: float, *, has_own: bool) -> None:
        """Remember since when this node has nothing of its own left to bring from the origin."""
        if has_own:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _may_bring(self, number: int, chunk: _Chunk, now: float) -> bool:
        """Whether this node reads it from the origin: its own, or one of a home node that brings nothing.

        Once it has none of its own left, it stands in for home nodes that are slow as well. Were all nodes to
        do so at once, or before, each would read most of the model where the origin is slow.
        """
        if chunk.seen is None:
            chunk.seen = now
        rank, home = self._turn(number)
        if rank == 0:
            return True
        peer = self._peers.get(home)
        moved = peer.moved if peer is not None and not peer.banned else 0.0
        patience = rank * self.limits.patience
        stuck = now - max(chunk.seen, moved) > patience
        idle = self._idle_since
        return stuck or (idle is not None and now - max(chunk.seen, idle) > patience)

    def _hedge(self, now: float) -> FetchRequest | None:
        """A second request for a chunk that is far later than others.

        Where all wait for a slow origin, none is late. So the chunk has waited for longer than answers take,
        and requests that began after it have their answers, or only few are left.
        """
        limits = self.limits
        running = sum(ask.hedge and ask.chunk in self._left for ask, _ in self._asks.values())
        if (
            self.paused(now)
            or len(self._times) < limits.hedge_samples
            or running >= max(2, self._window.size // 4)
        ):
            return None
        late = max(limits.hedge_after, limits.hedge_factor * median(self._times))
        few = self._at_origin() <= max(2, self._window.size // 4)
        for ask, began in self._asks.values():
            chunk = self._left.get(ask.chunk)
            if chunk is None or chunk.hedged or chunk.not_before > now:
                continue
            if now - began <= late:
                continue
            if few or sum(one > began for one in self._begun) >= limits.hedge_samples:
                chunk.hedged = True
                self.hedges += 1
                return self._ask(ask.chunk, chunk, ORIGIN, now, hedge=True)
        return None

    def _ask(
        self, number: int, chunk: _Chunk, source: str, now: float, *, hedge: bool = False
    ) -> FetchRequest:
        self._numbers += 1
        ask = FetchRequest(
            number=self._numbers,
            chunk=number,
            source=source,
            hedge=hedge,
            fresh_credentials=chunk.tries["denied"] > 0,
        )
        chunk.asked.append(ask.number)
        self._asks[ask.number] = (ask, now)
        return ask

    def _strike(self, peer: _Peer, kind: str, now: float) -> None:
        if kind == "corrupt":  # whatever the reason, it does not serve what it should
            peer.banned = True
        peer.strikes += 1
        if peer.strikes >= self.limits.peer_strikes:
            peer.strikes, peer.rests_until = 0, now + self.limits.peer_rest

    def _said(self) -> str:
        return ", ".join(f"{count} x {kind}" for kind, count in self.faults.most_common()) or "no answer"
