"""One replica of a pool, from the wish for it to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dray.cluster.base import NAMESPACE
from dray.cluster.ray_private import node_of
from dray.engine.client import RayReplica
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.ray_errors import ray_errors
from dray.engine.replica import ReplicaStatus, actor_class
from dray.errors import EngineStartError

_QUIET_SECONDS = 5.0  # without an answer or an error, after which a question got through
_NAME_SECONDS = 60.0  # until Ray has noticed the death of an actor, or of the driver that owned it


class MemberState(StrEnum):
    """``starting -> ready -> leaving -> gone``, or straight to ``gone``."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class ReplicaStart:
    """How a replica's start went, in seconds since 1970.

    ``began`` is when Ray was asked for it, ``process`` when its process began to build the engine, and
    ``ready`` when that could take work.
    """

    name: str
    began: float
    process: float
    ready: float
    info: EngineInfo


@dataclass(kw_only=True, eq=False)
class ReplicaHandle:
    """A replica's actor and what the pool knows of it. ``lane`` is its place in the pool, kept by successors.

    ``node`` and ``host`` are known once it is ready; ``note`` says why it does not work. ``asked`` (when Ray
    was asked for it), ``leave_by``, ``heard``, ``unsure`` (the first of the calls in a row that did not get
    through), ``placed`` (when it was first seen to have a node, while it starts) and ``idle`` (since when it
    has no shard) are monotonic seconds.
    """

    lane: int
    replica: RayReplica
    slots: int
    began: float = field(default_factory=time.time)
    state: MemberState = MemberState.STARTING
    node: str | None = None
    host: str | None = None
    start: ReplicaStart | None = None
    leave_by: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    unsure: float | None = None
    placed: float | None = None
    idle: float | None = None
    note: str | None = None
    asked: float = field(default_factory=time.monotonic)
    _ready: Any = None
    _asked: float = 0.0

    @property
    def name(self) -> str:
        """The actor's."""
        return self.replica.name

    @property
    def max_num_seqs(self) -> int:
        """Rows that its engine runs at a time; 0 until it is ready."""
        return self.start.info.max_num_seqs if self.start else 0

    def poll(self) -> bool:
        """Whether it has become ready since the last time.

        Raises:
            EngineStartError, ConfigError: it never will.
            ReplicaLostError: its process is gone.
        """
        import ray

        if self._ready is None:
            self._ready = self.replica.actor.ready.remote(), self.replica.actor.whereabouts.remote()
            self._asked = time.monotonic()
        with ray_errors(self.name):
            if not ray.wait([self._ready[0]], timeout=0)[0]:
                if time.monotonic() - self._asked > _QUIET_SECONDS:
                    self.unsure = None
                return False
            info, where = ray.get(list(self._ready))
        ready = min(max(where.ready, self.began), time.time())  # its node's clock may be another one
        self.start = ReplicaStart(
            name=self.name, began=self.began, process=where.process, ready=ready, info=info
        )
        self.node, self.host = where.node_id, where.host
        self.state, self.note = MemberState.READY, None
        self.heard = time.monotonic()
        return True

    def has_place(self) -> bool:
        """Whether Ray has given it a node."""
        if self.placed is None and node_of(self.replica.actor_id) is not None:
            self.placed = time.monotonic()
        return self.placed is not None

    def is_overdue(self, seconds: float) -> bool:
        """Whether it has been seen on a node for longer than ``seconds``; waiting for one does not count."""
        return self.placed is not None and time.monotonic() - self.placed > seconds

    def ask_again(self) -> None:
        """Forget a question whose answer did not come through."""
        self._ready = None

    def kill(self) -> None:
        """End its process, if it lives."""
        import ray

        ray.kill(self.replica.actor, no_restart=True)
        self.state = MemberState.GONE


def launch(name: str, lane: int, spec: EngineSpec, options: dict[str, Any], *, slots: int) -> ReplicaHandle:
    """Ask Ray for a replica, once it has let go of an older actor of this name; it starts in the background.

    Raises:
        EngineStartError: the name stays taken.
    """
    import ray

    deadline = time.monotonic() + _NAME_SECONDS
    while True:
        try:
            actor = actor_class().options(name=name, namespace=NAMESPACE, **options).remote(name, spec)
        except ray.exceptions.ActorAlreadyExistsError:
            if time.monotonic() > deadline:
                raise EngineStartError(f"replica {name}: another actor of this name lives on") from None
            time.sleep(0.2)
        else:
            return ReplicaHandle(lane=lane, replica=RayReplica(name, actor), slots=slots)


def statuses(
    members: list[ReplicaHandle], seconds: float
) -> dict[ReplicaHandle, ReplicaStatus | Exception | None]:
    """What each says of itself within ``seconds``; an error where it is lost, None where it is silent."""
    import ray

    calls = {member.replica.actor.status.remote(): member for member in members}
    ready = ray.wait(list(calls), num_returns=len(calls), timeout=seconds)[0] if calls else []
    found: dict[ReplicaHandle, ReplicaStatus | Exception | None] = dict.fromkeys(members)
    for reference in ready:
        member = calls[reference]
        try:
            with ray_errors(member.name):
                found[member] = ray.get(reference)
        except Exception as error:  # noqa: BLE001  whatever it is, that replica does not work
            found[member] = error
    return found
