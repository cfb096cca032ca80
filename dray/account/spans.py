"""A stretch of a node's time, by what the node did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MICRO = 1_000_000
"""Microseconds of a second, and micro-dollars of a dollar."""


class Phase(StrEnum):
    """What a place for a replica did. ``boot``: the node waited for its first replica to be asked for.

    ``image``: the replica's process came up; ``weights`` were fetched for it; the ``engine`` was built.
    ``busy``: it answered rows that were committed. ``lost``: it worked on rows that it never finished.
    ``repeated``: it finished rows whose answers were not committed: another replica computes them as well.
    ``idle``: it was ready, and had no row. ``unused``: the node has a place that no replica takes.
    ``restart``: a lost replica's successor started. ``drained``: no replica was there after one was lost, or
    one that had to leave had no row. ``finalise``: answers were written to files.
    """

    BOOT = "boot"
    IMAGE = "image"
    WEIGHTS = "weights"
    ENGINE = "engine"
    BUSY = "busy"
    LOST = "lost"
    REPEATED = "repeated"
    IDLE = "idle"
    UNUSED = "unused"
    RESTART = "restart"
    DRAINED = "drained"
    FINALISE = "finalise"


PARTS: dict[str, tuple[Phase, ...]] = {
    "useful": (Phase.BUSY,),
    "cold_start": (Phase.BOOT, Phase.IMAGE, Phase.WEIGHTS, Phase.ENGINE),
    "idle_tail": (Phase.IDLE, Phase.UNUSED, Phase.FINALISE),
    "interrupted": (Phase.LOST, Phase.RESTART, Phase.DRAINED),
    "recomputed": (Phase.REPEATED,),
}
"""The parts of a bill, and the phases that each pays for."""

_PART_OF = {phase: part for part, phases in PARTS.items() for phase in phases}


def part_of(phase: str) -> str:
    """The part of the bill that pays for a phase."""
    return _PART_OF[Phase(phase)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Some microseconds of one of the ``places`` that the node has for replicas.

    ``node`` is the cluster's id of it, ``host`` its name, ``gpus`` what the node has. ``started`` is in
    seconds since 1970, ``price`` in micro-dollars per hour of the whole node. The ``micros`` of a node's
    places are equally many, so a node's time is the sum of its spans divided by ``places``.
    """

    epoch: int
    node: str
    host: str
    place: int
    places: int
    replica: str
    phase: str
    started: float
    micros: int
    gpus: float = 0.0
    price: int | None = None
