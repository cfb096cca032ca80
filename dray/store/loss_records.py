"""What the store keeps of a lost replica: what its shards saw, and what its driver judged."""

from __future__ import annotations

from dataclasses import dataclass


def own_event(shard: int, epoch: int) -> str:
    """What names the losses that one attempt at a shard charges itself."""
    return f"{shard}/{epoch}"


def attempt_of(event: str) -> tuple[int, int] | None:
    """The shard and epoch that an event of :func:`own_event` names; None for another event."""
    shard, _, epoch = event.partition("/")
    return (int(shard), int(epoch)) if shard.isdecimal() and epoch.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a shard task saw of the replica that it lost; the driver judges the loss by it.

    ``sign`` is what its error said, as :class:`dray.failures.foreign.Sign` has it; ``oom``, ``preempted`` and
    ``stuck`` are what the error carried. ``alone``: no other shard had rows in the engine. ``proven``: the
    engine had answered a request of dray's own before.
    """

    sign: str
    oom: bool = False
    preempted: bool = False
    stuck: bool = False
    alone: bool = False
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """The shards of a lost replica: what those ``said`` that lost it, and how many are ``silent`` as yet."""

    said: tuple[Evidence, ...] = ()
    silent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the driver judged that a replica was lost of, and the ``event`` that it charged."""

    cause: str
    event: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictStatus:
    """Where the judgement of a loss stands. ``open``: there is none, and the driver may yet write it."""

    verdict: Verdict | None
    open: bool
