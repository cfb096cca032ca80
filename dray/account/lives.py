"""Turns what is known of replicas into spans of their nodes: each moment of each place is in one span."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dray.account.spans import MICRO, Phase, Span
from dray.places import short_name


@dataclass(kw_only=True)
class Life:
    """What is known of one replica, so far. Moments are seconds since 1970.

    ``asked``: the cluster was asked for it; ``placed``: it was first seen on its node; ``process``: its
    process began; ``ready``: it can take work; ``leaving``: it takes no more; ``ended``: it is gone.
    ``lost``: it died. ``successor``: it stands in for one that was lost, or had to leave. It asks for
    ``gpus`` of its node, and of each of ``others``.
    Its engine's counters, at ``looked``: ``busy`` seconds, ``row_seconds`` (those seconds times the rows
    in the engine), ``answered_seconds`` (of them, those of rows that it finished), ``running`` and
    ``finished`` rows. ``committed``: rows of this replica that are in the store.
    """

    name: str
    asked: float
    node: str | None = None
    host: str = ""
    others: tuple[str, ...] = ()
    gpus: float = 0.0
    placed: float | None = None
    process: float | None = None
    ready: float | None = None
    leaving: float | None = None
    ended: float | None = None
    lost: bool = False
    successor: bool = False
    weights: tuple[float, float] | None = None
    looked: float | None = None
    busy: float = 0.0
    row_seconds: float = 0.0
    answered_seconds: float = 0.0
    running: int = 0
    finished: int = 0
    committed: int = 0

    @property
    def came(self) -> float:
        """When it came to its node, as far as is known: it may have waited for hours until there was room."""
        return self.asked if self.placed is None else max(self.asked, self.placed)

    def shares(self, end: float) -> tuple[float, float]:
        """Shares of its busy time up to ``end``: on rows that it never finished, and that were not committed.

        Since the last look it is taken to have held as many rows, and as much work on them.
        """
        rows = self.row_seconds + self.running * self._since(end)
        if rows <= 0:
            return 0.0, 0.0
        unfinished = min(rows, max(0.0, self.row_seconds - self.answered_seconds)) / rows
        repeated = 1.0 - min(1.0, self.committed / self.finished) if self.finished else 0.0
        return unfinished, (1.0 - unfinished) * repeated

    def busy_until(self, end: float) -> float:
        """Its busy seconds at ``end``: it worked on from the last look, if it held rows then."""
        return self.busy + self._since(end)

    def _since(self, end: float) -> float:
        """Seconds of work since the last look."""
        return max(0.0, end - self.looked) if self.looked is not None and self.running else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBill:
    """A node as the account sees it: from when on, until when (None: still there), and its price.

    ``price`` is in micro-dollars per hour, None where it is not known.
    """

    began: float
    ended: float | None = None
    gpus: float = 0.0
    price: int | None = None


def spans_of(lives: Sequence[Life], nodes: Mapping[str, NodeBill], *, epoch: int, now: float) -> list[Span]:
    """The spans of all nodes on which a replica was, up to ``now``."""
    by_node: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        if life.node is not None:
            by_node[life.node].append(life)
    found: list[Span] = []
    for node, here in by_node.items():
        here.sort(key=lambda life: life.came)
        facts = nodes.get(node) or NodeBill(began=here[0].asked)
        found += _of_node(node, here, facts, epoch, now)
    return found


def _of_node(node: str, lives: list[Life], facts: NodeBill, epoch: int, now: float) -> Iterator[Span]:
    whole = _micros(max(0.0, (facts.ended if facts.ended is not None else now) - facts.began))
    tracks = _tracks(lives)
    gpus_each = max(life.gpus for life in lives)
    places = max(len(tracks), int(facts.gpus / gpus_each + 1e-6) if gpus_each else 0)
    host = next((life.host for life in lives if life.host), "")
    tracks += [[] for _ in range(places - len(tracks))]
    for place, track in enumerate(tracks):
        for replica, phase, start, micros in _of_place(track, facts.began, whole):
            if micros:
                yield Span(
                    epoch=epoch,
                    node=node,
                    host=host,
                    place=place,
                    places=places,
                    replica=short_name(replica),
                    phase=phase,
                    started=facts.began + start / MICRO,
                    micros=micros,
                    gpus=max(facts.gpus, places * gpus_each),
                    price=facts.price,
                )


def _tracks(lives: list[Life]) -> list[list[Life]]:
    """Replicas that were there one after the other have one place."""
    tracks: list[list[Life]] = []
    for life in lives:
        for track in tracks:
            ended = track[-1].ended
            if ended is not None and ended <= life.came:
                track.append(life)
                break
        else:
            tracks.append([life])
    return tracks


Cut = tuple[str, Phase, int, int]
"""Replica, phase, and microseconds: from the node's beginning, and long."""


def _of_place(track: list[Life], began: float, whole: int) -> Iterator[Cut]:
    """All ``whole`` microseconds of a place, in the order of its replicas."""
    at, before = 0, Phase.BOOT
    for life in track:
        asked = min(whole, max(at, _micros(life.asked - began)))
        yield "", before, at, asked - at
        at = whole if life.ended is None else min(whole, max(asked, _micros(life.ended - began)))
        yield from _of_life(life, began, asked, at)
        before = Phase.DRAINED if life.lost or life.leaving is not None else Phase.IDLE
    yield "", before if track else Phase.UNUSED, at, whole - at


def _of_life(life: Life, began: float, asked: int, ended: int) -> Iterator[Cut]:
    """A replica's microseconds from ``asked`` to ``ended``."""

    def at(moment: float | None, least: int) -> int:
        return ended if moment is None else min(ended, max(least, _micros(moment - began)))

    process = at(life.process, asked)
    ready = at(life.ready, process)
    starts = [(Phase.IMAGE, asked, process - asked)]
    weights = 0
    if life.weights is not None:
        from_, to = at(life.weights[0], process), at(life.weights[1], process)
        weights = max(0, min(to, ready) - min(from_, ready))
        starts.append((Phase.WEIGHTS, min(from_, ready), weights))
    starts.append((Phase.ENGINE, process, ready - process - weights))
    for phase, start, micros in starts:
        yield life.name, Phase.RESTART if life.successor else phase, start, micros
    yield from _of_work(life, ready, ended, at(life.leaving, ready), began)


def _of_work(life: Life, ready: int, ended: int, leaving: int, began: float) -> Iterator[Cut]:
    """What a replica did from when it was ready."""
    whole = ended - ready
    end = began + ended / MICRO
    busy = min(whole, _micros(max(0.0, life.busy_until(end))))
    lost_share, repeated_share = life.shares(end)
    lost = min(busy, round(busy * lost_share))
    repeated = min(busy - lost, round(busy * repeated_share))
    idle = whole - busy
    drained = min(idle, ended - leaving) if life.leaving is not None else 0
    for phase, micros in (
        (Phase.BUSY, busy - lost - repeated),
        (Phase.LOST, lost),
        (Phase.REPEATED, repeated),
        (Phase.IDLE, idle - drained),
        (Phase.DRAINED, drained),
    ):
        yield life.name, phase, ready, micros


def _micros(seconds: float) -> int:
    return round(seconds * MICRO)


def closing(spans: Sequence[Span], *, epoch: int, host: str, now: float) -> list[Span]:
    """Spans of the nodes of this machine, from the last that is known of this run to ``now``.

    The driver's machine is still there while answers are written to files.
    """
    places: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in spans:
        if span.epoch == epoch and span.host == host:
            places[span.node, span.place].append(span)
    found = []
    for known in places.values():
        ended = min(span.started for span in known) + sum(span.micros for span in known) / MICRO
        left = _micros(now - ended)
        if left > 0:
            found.append(replace(known[0], replica="", phase=Phase.FINALISE, started=ended, micros=left))
    return found
