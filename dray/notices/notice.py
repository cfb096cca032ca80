"""A notice that this node, or this pod, is about to go away; and what a source of notices is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

SOON = 30.0
"""Seconds until the end where a cloud names none: what GCP gives, and Kubernetes unless told otherwise."""

_PASSING = frozenset({"Freeze", "MIGRATE_ON_HOST_MAINTENANCE"})  # the machine stands still, and goes on
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,127}")


class NoticeKind(StrEnum):
    """What a notice is about."""

    INTERRUPTION = "interruption"
    """The cloud takes this machine back."""
    REBALANCE = "rebalance"
    """The cloud may do so soon."""
    MAINTENANCE = "maintenance"
    """The machine, or the host under it, is worked on."""
    TAINT = "taint"
    """The Kubernetes cluster empties or removes this node."""
    TERM = "term"
    """This pod or process was told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice. Times are seconds since 1970 by this node's clock.

    ``action`` is the source's own word (``terminate``, ``Preempt``, a taint's key). ``deadline`` is when the
    node may end, None where the source names no time. ``id`` names the event, and is the same at every look.
    """

    source: str
    kind: NoticeKind
    action: str
    deadline: float | None
    seen_at: float
    id: str

    @property
    def ends_node(self) -> bool:
        """Whether the node is to go away: not for a mere risk, nor for a pause of seconds."""
        return self.kind is not NoticeKind.REBALANCE and self.action not in _PASSING

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the deadline, 0 when it has passed; None where there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


class SourceError(OSError):
    """A source did not answer as documented. The message names what was asked, never what was answered."""


class Source(Protocol):
    """Where notices come from. One thread asks it, again and again."""

    name: str
    pause: float
    """Seconds from the beginning of one look to that of the next."""

    def poll(self) -> list[Notice]:
        """All notices in force; may wait some seconds for a change.

        Raises:
            SourceError: the source cannot be asked now.
        """


def plain(text: object) -> str:
    """A word of a source as it may enter a log or a database: itself, or ``unknown``."""
    return text if isinstance(text, str) and _WORD.fullmatch(text) else "unknown"
