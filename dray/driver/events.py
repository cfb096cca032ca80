"""What a driver tells its observers: frozen facts, without prompts, answers or secrets.

Each event is a line for people where it has a ``text``, with the level of Python's logging that fits it.
Times are seconds since 1970, as the driver's machine has them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dray.driver.replicas.handle import ReplicaHandle, ReplicaStart
from dray.engine.replica import ReplicaStatus
from dray.notices.notice import Notice
from dray.places import lane_of
from dray.report import Pulse
from dray.shard.work import ShardReceipt
from dray.store import ReplicaState
from dray.wording import duration, plural


class Event:
    """Something that the driver saw or did."""

    level: ClassVar[int] = logging.INFO

    @property
    def text(self) -> str | None:
        """The event in a line; None where people need none."""
        return None


class Observer(Protocol):
    """Is told of each event, in order, in the driver's thread: it must not wait, nor end the job."""

    def hear(self, event: Event) -> None:
        """This has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Event):
    """Something for people alone."""

    line: str

    @property
    def text(self) -> str:
        """The line."""
        return self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Told):
    """Something that people may have to see to."""

    level: ClassVar[int] = logging.WARNING


# -- replicas and nodes -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReady(Event):
    """A replica can take work."""

    start: ReplicaStart

    @property
    def text(self) -> str:
        """What the start took, and the parts of it that took a tenth of a second."""
        parts = self.start.info.timeline
        if self.start.info.weights is None:  # these say something where weights had to be fetched
            parts = {name: seconds for name, seconds in parts.items() if name not in ("wait", "load")}
        shown = {name: f"{seconds:.1f} s" for name, seconds in parts.items()}
        told = ", ".join(f"{name} {seconds}" for name, seconds in shown.items() if seconds != "0.0 s")
        took = f"ready after {self.start.ready - self.start.began:.1f} s"
        return f"{lane_of(self.start.name)} {took}{f' ({told})' if told else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLooked(Event):
    """What a replica says of itself."""

    status: ReplicaStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogged(Event):
    """A record of a replica's log."""

    name: str
    severity: int
    logger: str
    message: str

    @property
    def text(self) -> str | None:
        """The record, without the name of a module of ours; None for what is below INFO."""
        if self.severity < logging.INFO:
            return None
        of = "" if self.logger.startswith("dray.") else f"{self.logger}: "
        return f"[{lane_of(self.name)}] {of}{self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChanged(Event):
    """Where a replica stands ``at`` a moment; may be told more than once.

    ``began`` is when the cluster was asked for it, and ``at`` so many seconds later, whatever set the clock.
    ``gpus`` are those that it asked for, of each of its nodes. ``node`` is the cluster's id of its node,
    known once it was given one, and ``host`` that node's name, once it is ready. ``others`` are the ids of
    its other nodes, where it is on several. A ``retired`` one has no successor: the job needs fewer replicas.
    """

    name: str
    state: ReplicaState
    began: float
    at: float
    node: str | None
    host: str | None
    gpus: float
    retired: bool = False
    others: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that it is on, as far as is known."""
        return self.others if self.node is None else (self.node, *self.others)

    @classmethod
    def of(cls, replica: ReplicaHandle, gpus: float) -> ReplicaChanged:
        """The event that tells of a replica as it is now."""
        return cls(
            name=replica.name,
            state=replica.state,
            began=replica.began,
            at=replica.clock(),
            node=replica.node or replica.place,
            host=replica.host,
            gpus=gpus,
            retired=replica.retired,
            others=replica.others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft(Event):
    """A node that replicas were on has left the cluster: an autoscaler ended it, or it was lost."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost(Event):
    """A replica died, and ``cause`` and ``reason`` of the table of causes say why."""

    level: ClassVar[int] = logging.WARNING
    name: str
    node: str | None
    cause: str
    reason: str

    @property
    def text(self) -> str:
        """The replica, and the reason."""
        return f"{lane_of(self.name)} lost: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """A node went, with a replica that was on it; told once of each. ``node`` is the cluster's id of it."""

    node: str
    replica: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNoticed(Event):
    """A notice came for a node."""

    level: ClassVar[int] = logging.WARNING
    node: str
    host: str
    notice: Notice

    @property
    def text(self) -> str:
        """The node by the name that people know, and the notice."""
        notice = self.notice
        return f"node {self.host}: {notice.kind} notice of {notice.source}: {notice.action}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasWait(Event):
    """Replicas wait for a place, for this ``reason``; None where none does any more."""

    level: ClassVar[int] = logging.WARNING
    reason: str | None

    @property
    def text(self) -> str:
        """The reason."""
        return self.reason or "no replica waits for a place any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasIdle(Event):
    """Some ready replicas of ``lanes`` have had no work for some seconds."""

    level: ClassVar[int] = logging.WARNING
    count: int
    lanes: int
    reason: str

    @property
    def text(self) -> str:
        """How many, and why."""
        return f"{self.count} of {self.lanes} replicas have no work: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityDecided(Event):
    """The job is to have so many ``replicas`` from now on, instead of ``before``."""

    before: int
    replicas: int
    reason: str

    @property
    def text(self) -> str:
        """How many, and why."""
        return f"{plural(self.replicas, 'replica')} instead of {self.before}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketDecided(Event):
    """How many replicas may be on demand from now on, on a cluster whose machines dray rents."""

    on_demand: int
    reason: str

    @property
    def text(self) -> str:
        """How many, and why."""
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityMissing(Event):
    """Some replicas found no place within ``seconds``: the job goes on with ``replicas``."""

    level: ClassVar[int] = logging.WARNING
    missing: int
    replicas: int
    seconds: float
    reason: str

    @property
    def before(self) -> int:
        """Replicas that there were to be until now."""
        return self.replicas + self.missing

    @property
    def text(self) -> str:
        """How many, and why."""
        told = f"{plural(self.missing, 'replica')} found no place within {self.seconds:.0f} s"
        return f"{told}; the job goes on with {self.replicas}, and asks again later ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook(Event):
    """Whether the job will meet deadline and budget as it is. Seconds and dollars, None: not asked."""

    seconds_left: float
    deadline_in: float | None
    dollars_left: float | None
    budget_left: float | None

    @property
    def text(self) -> str:
        """Both, in words."""
        told = [f"the rest takes {duration(self.seconds_left)} as things are"]
        if self.deadline_in is not None:
            late = self.seconds_left - self.deadline_in
            told.append(
                f"{duration(late)} too long for the deadline" if late > 0 else "in time for the deadline"
            )
        if self.budget_left is not None and self.dollars_left is not None:
            over = self.dollars_left - self.budget_left
            cost = f"and costs ${self.dollars_left:,.2f}"
            told.append(f"{cost}, ${over:,.2f} over the budget" if over > 0 else f"{cost}, within the budget")
        return ", ".join(told)


# -- shards and rows ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSubmitted(Event):
    """The driver starts a shard's task; ``why`` is the reason of :mod:`dray.scheduling`."""

    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFinished(Event):
    """A shard's task has ended; ``how`` names it, and ``receipt`` is there where rows were committed."""

    number: int
    how: str
    receipt: ShardReceipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(Event):
    """How far the job is; ``final`` when the driver has looked for the last time."""

    pulse: Pulse
    final: bool = False

    @property
    def text(self) -> str:
        """The rows, rates and errors."""
        return self.pulse.line


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorShareReached(Event):
    """A share of the finished rows are error rows: 0.05 for 5%."""

    reached: float
    failed: int
    finished: int
    total: int


# -- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StopHeard(Event):
    """The job is to stop: it was cancelled, its time is over, or it was put to rest."""

    why: str

    @property
    def text(self) -> str:
        """What was asked for."""
        return f"{self.why}: keeping what is committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway(Event):
    """The store does not answer, or takes no writes; told once a minute."""

    level: ClassVar[int] = logging.WARNING
    error: str

    @property
    def text(self) -> str:
        """The error: one of dray's own, which names no user and no host."""
        return f"the store does not answer: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    """The store answers again."""

    seconds: float

    @property
    def text(self) -> str:
        """How long it was away, in words."""
        return f"the store answers again, after {self.seconds:.0f} s"
