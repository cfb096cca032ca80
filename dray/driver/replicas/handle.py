"""One replica of a pool, from the wish for it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dray.driver.fleet import ReplicaProcess
from dray.engine.protocol import EngineInfo
from dray.engine.replica import ReplicaStatus
from dray.errors import ReplicaLostError
from dray.steady_clock import SteadyClock
from dray.store import ReplicaRow, ReplicaState

_QUIET_SECONDS = 5.0  # without an answer or an error, after which a question got through


@dataclass(frozen=True, kw_only=True)
class ReplicaStart:
    """How a replica's start went, in seconds since 1970.

    ``began`` is when the cluster was asked for it, ``placed`` when it was first seen on a node (else
    when it was last seen without one), ``process`` when its process began to build the engine, and ``ready``
    when that could take work.
    """

    name: str
    began: float
    placed: float
    process: float
    ready: float
    info: EngineInfo

    @property
    def seconds(self) -> float:
        """Seconds from its place on a node to its first work; it may have waited hours for that place."""
        return self.ready - self.placed


@dataclass(kw_only=True, eq=False)
class ReplicaHandle:
    """A replica's process and what the pool knows of it.

    ``lane`` is its place in the pool, kept by successors. ``node`` and ``host`` are known once it is ready,
    and ``place``, the node that it was given, from when it was first seen to have one (``placed``), as are
    the ``others``, where it is on several. ``note``
    says why it does not work; a ``retired`` one has no successor. ``asked`` is when the cluster was asked for
    it, in monotonic seconds, and ``clock`` runs since then. Others are seconds of ``watched``, the driver's:
    ``leave_by``, ``heard``, ``unsure`` (the first of the calls in a row that did not get through), ``placed``
    and ``idle`` (since when it has no shard).
    """

    lane: int
    process: ReplicaProcess
    slots: int
    state: ReplicaState = ReplicaState.STARTING
    node: str | None = None
    host: str | None = None
    place: str | None = None
    others: tuple[str, ...] = ()
    start: ReplicaStart | None = None
    leave_by: float = 0.0
    heard: float = 0.0
    unsure: float | None = None
    placed: float | None = None
    idle: float | None = None
    note: str | None = None
    retired: bool = False
    asked: float = field(default_factory=time.monotonic)
    clock: SteadyClock = field(default_factory=SteadyClock)
    watched: Callable[[], float] = time.monotonic
    _came: float | None = None  # when it was placed, in seconds since 1970
    _waited: float = 0.0  # until when it was seen without a place, in seconds since 1970
    _polled: float | None = None
    _ask_at: float = 0.0

    @property
    def name(self) -> str:
        """The replica's."""
        return self.process.name

    @property
    def began(self) -> float:
        """When the cluster was asked for it, in seconds since 1970."""
        return self.clock.began

    @property
    def max_num_seqs(self) -> int:
        """Rows that its engine runs at a time; 0 until it is ready."""
        return self.start.info.max_num_seqs if self.start else 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that it is on, as far as is known; that of its process first."""
        first = self.node or self.place
        return self.others if first is None else (first, *self.others)

    @property
    def row(self) -> ReplicaRow:
        """The row that the store gets of it."""
        return ReplicaRow(
            name=self.name,
            lane=self.lane,
            state=ReplicaState.RETIRED if self.retired else self.state,
            slots=self.slots,
            node=self.node,
            others=self.others,
            host=self.host,
            max_num_seqs=self.max_num_seqs,
            note=self.note,
        )

    def poll(self) -> bool:
        """Whether it has become ready since the last time.

        Raises:
            EngineStartError, ConfigError: it never will.
            ReplicaLostError: its process is gone.
        """
        now = self.watched()
        self._polled = self._polled or now
        began = self.process.began()
        if began is None:
            if now - self._polled > _QUIET_SECONDS:
                self.unsure = None
            return False
        seen, ready = self.clock(), began.where.ready
        ready = ready if self.began <= ready <= seen else seen  # its node's clock may be another one
        self.start = ReplicaStart(
            name=self.name,
            began=self.began,
            placed=min(max(self._came or self._waited, self.began), ready),
            process=began.where.process,
            ready=ready,
            info=began.info,
        )
        self.node, self.host = began.where.node_id, began.where.host
        self.others = self.process.others()
        self.state, self.note = ReplicaState.READY, None
        self.heard = now
        return True

    def status(self, every: float) -> ReplicaStatus | None:
        """What it has said of itself since the last call; asks it again ``every`` so many seconds.

        Raises:
            ReplicaLostError, EngineDeadError: it is lost.
        """
        found = self.process.status()
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + every
            self.process.ask_status()
        return found

    def has_place(self) -> bool:
        """Whether it has been given a node."""
        if self.placed is None:
            self.place = self.process.node()
            self.others = self.process.others()
            if self.place is None:
                self._waited = self.clock()
            else:
                self.placed, self._came = self.watched(), self.clock()
        return self.placed is not None

    def is_overdue(self, seconds: float) -> bool:
        """Whether it has been seen on a node for longer than ``seconds``; waiting for one does not count."""
        return self.placed is not None and self.watched() - self.placed > seconds

    def may_live(self, error: Exception, seconds: float) -> bool:
        """Whether only calls were lost, as far as the cluster and the node show, for ``seconds`` at most."""
        if not (isinstance(error, ReplicaLostError) and error.unsure):
            return False
        self.unsure = self.unsure or self.watched()
        return self.watched() - self.unsure <= seconds and not self.process.is_gone()

    def ask_again(self) -> None:
        """A question whose answer did not come through begins anew."""
        self._polled = None

    def kill(self) -> None:
        """End its process, if it lives."""
        self.state = ReplicaState.GONE
        self.process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A replica that died of ``error``; its process may still be asked for its fate.

    ``hopeful``: other engines of the job start, as far as is known. ``at`` is when it was found, in monotonic
    seconds: it is judged once the store is there.
    """

    replica: ReplicaHandle
    error: BaseException
    hopeful: bool = False
    at: float = field(default_factory=time.monotonic)
