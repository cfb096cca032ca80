"""What is known around an error, and the names of causes: what the table of causes decides from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dray.failures.effects import Budget

NOTICE_SECONDS = 600.0
"""How long a notice explains losses, and how long before and after its deadline."""


class Cause(StrEnum):
    """Why something ended, as the store and reports name it."""

    FENCED = "FENCED"
    USER_ERROR = "USER_ERROR"
    SPOT = "SPOT"
    NODE_LOSS = "NODE_LOSS"
    ENGINE_CRASH = "ENGINE_CRASH"
    OOM = "OOM"
    NO_ROOM = "NO_ROOM"
    STORE_TRANSIENT = "STORE_TRANSIENT"
    STORE_FATAL = "STORE_FATAL"
    POISON = "POISON"
    CANCEL = "CANCEL"
    UNKNOWN = "UNKNOWN"


class Announced(Protocol):
    """A notice, from its source or from the store. Times are seconds since 1970."""

    @property
    def seen_at(self) -> float:
        """When it was seen."""

    @property
    def deadline(self) -> float | None:
        """When the node was to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known around an error. Unknown facts keep their default.

    Counts are of what came before this error. ``now`` and the notices' times are by one clock, the store's.
    """

    now: float = 0.0
    notices: Sequence[Announced] = ()  # for any node of the replica's
    draining: bool = False  # Ray lists one of them as draining
    preempted: bool = False  # Ray says that one was
    node_alive: bool | None = None
    oom: bool = False  # the death's context says so
    cancelled: bool = False
    expired: bool = False
    store_seconds: float = 0.0  # for which the store has been away
    untaken_seconds: float = 0.0  # for which it answered, and took no row
    rows: int = 1  # of the shard, without an outcome
    alone: bool = False  # a suspect: no other shard had rows in the engine
    proven: bool = False  # the engine had answered a request of dray's own before it was given these rows
    hopeful: bool = False  # other engines of the job start, as far as is known: see Lanes.is_hopeful
    elsewhere: bool = False  # the crash before this one was at another place, or there is no other place
    new_rows: int = 0  # with an outcome, by this attempt
    interruptions: int = 0  # of the shard in a row, without a new row
    crashes: int = 0  # that count against the shard; the halves of a split shard begin with 1
    shrinks: int = 0  # engines of the job that lacked memory
    tries: int = 0  # in a row that failed of the same cause
    spent: Mapping[Budget, int] = field(default_factory=dict)


def in_force(notice: Announced, now: float) -> bool:
    """Whether a notice explains a loss at ``now``: an old one, after which the node went on, does not."""
    if now - notice.seen_at <= NOTICE_SECONDS:
        return True
    return notice.deadline is not None and abs(now - notice.deadline) <= NOTICE_SECONDS
