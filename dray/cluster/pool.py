"""The replicas of a job: started by the driver, drained before their nodes go, replaced when they die."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import ClusterInfo, Node
from dray.cluster.losses import NodeFacts, diagnose, is_gone
from dray.cluster.member import MemberState, ReplicaHandle, ReplicaStart, launch, statuses
from dray.cluster.placing import actor_options, shrunk
from dray.cluster.ray_private import drain, node_of
from dray.cluster.waiting import Places, no_place_for_tasks
from dray.engine.protocol import EngineSpec
from dray.engine.replica import ReplicaStatus
from dray.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    ReplicaLostError,
    StoreError,
)
from dray.notices.notice import SOON
from dray.places import lane_of

SLOTS = 2
"""Shards at a time on a replica: the tail of one overlaps the head of the next."""

SILENT_SECONDS = 60.0
"""A replica that says nothing for so long is ended: its node hangs, or the way to it."""

DRAIN_SECONDS = 10.0
"""For requests in flight to finish, once a notice came: with 5 s for the rest, a drain takes 15."""

START_SECONDS = 1800.0
"""For a replica that has its place to build the engine: a large model, from a slow disk."""

_STATUS_SECONDS = 2.0
_PUBLISH_SECONDS = 5.0
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A replica that died."""

    name: str
    node: str | None
    error: BaseException
    facts: NodeFacts


class Ledger(Protocol):
    """What a pool reports of its replicas, and asks before it starts another. Calls may raise StoreError."""

    def publish(self, members: Sequence[ReplicaHandle]) -> None:
        """These stand so now."""

    def lost(self, loss: Loss) -> None:
        """A replica died; called in a thread of its own."""

    def excluded(self, lane: str) -> Collection[str]:
        """Nodes that are to have no more replicas of this lane while another can."""

    def shrink_steps(self) -> int:
        """How often memory did not suffice."""


class ReplicaPool:
    """Owns the actors: they end with the process that made them.

    Names are ``PREFIX/replica-N``, and ``~G`` behind that for the G-th successor: no name is used twice.
    """

    def __init__(
        self, prefix: str, spec: EngineSpec, cluster: ClusterInfo, replicas: int, ledger: Ledger | None = None
    ) -> None:
        self._prefix = prefix
        self._spec = spec
        self._cluster = cluster
        self._ledger = ledger
        self._guard = threading.Lock()
        self._stopped = False
        self._members: list[ReplicaHandle] = []
        self._changed: set[ReplicaHandle] = set()
        self._due = dict.fromkeys(range(replicas), 0.0)  # lanes without a replica: when to start one
        self._failures: Counter[int] = Counter()  # of a lane, since one of it was ready
        self._generation: Counter[int] = Counter()
        self._leaving_nodes: dict[str, float] = {}
        self._cordoned: set[str] = set()
        self._avoided: dict[int, set[str]] = {}  # by lane: spent nodes that its last replica was to avoid
        self._ready: list[ReplicaStart] = []
        self._seqs = 0
        self._published = time.monotonic()
        self._unsettled: dict[int, threading.Thread] = {}  # lanes that lacked memory, until that is charged
        self._places = Places(spec, cluster, replicas)
        self._told: str | None = None
        self.lanes = replicas
        self.restarts = 0

    def start(self) -> None:
        """Ask Ray for all replicas; returns at once. ``settle`` repeats what the store was away for."""
        with suppress(StoreError):
            self._begin_due()

    def starts(self) -> list[ReplicaStart]:
        """How the starts went of all replicas that could take work so far."""
        return [member.start for member in self._members if member.start is not None]

    def take_ready(self) -> list[ReplicaStart]:
        """The starts that came to their end since the last call."""
        found, self._ready = self._ready, []
        return found

    def look(self) -> list[ReplicaStatus]:
        """See who is ready, leaves or died, without the store; what the live ones say, one status each.

        Raises:
            EngineStartError, ConfigError: no engine of the job has ever started, and none will.
        """
        self._poll_starting()
        self._look_for_places()
        return self._ask()

    def settle(self) -> None:
        """Start what is due, and report the changes to the ledger.

        Raises:
            StoreError: the ledger's; the next call does what is left.
        """
        self._begin_due()
        self._publish()

    def drain_node(self, node: Node, deadline: float | None) -> None:
        """A node is taken back at ``deadline`` (seconds since 1970): its replicas finish, others begin."""
        left = (deadline - time.time()) if deadline is not None else SOON
        drain(node.node_id, time.time() + max(left - 5.0, 1.0))  # before the end: Ray is to see it come
        self._leaving_nodes[node.node_id] = time.monotonic() + max(left, 0.0)
        for member in self._in(MemberState.READY):
            if member.node == node.node_id:
                self._drain(member, max(0.0, min(DRAIN_SECONDS, left - 5.0)))
        for member in self._in(MemberState.STARTING):
            if node_of(member.replica.actor_id) == node.node_id:  # what it has loaded is lost either way
                self._end(member)
                self._due[member.lane] = 0.0

    def cordon(self, node: Node) -> None:
        """A node may be taken back: it gets no new replicas while another can have them."""
        self._cordoned.add(node.node_id)

    @property
    def ask(self) -> ReplicaResources:
        """What each replica asks Ray for."""
        return self._places.ask

    def waiting(self) -> str | None:
        """How many replicas wait for a place, and why; None where none does."""
        notes = [member.note for member in self._in(MemberState.STARTING) if member.note is not None]
        return f"{len(notes)} of {self.lanes} replicas wait: each {notes[-1]}" if notes else None

    def take_told(self) -> str | None:
        """What is new of those that wait, since the last call."""
        waiting = self.waiting()
        if waiting == self._told:
            return None
        self._told = waiting
        return waiting or "no replica waits for a place any more"

    def no_place_for_tasks(self) -> str | None:
        """Why Ray starts no shard task; None where it can."""
        return no_place_for_tasks(self._cluster.stable_resource)

    def ready(self) -> int:
        """Replicas that can take work."""
        return len(self._in(MemberState.READY))

    def idle(self, seconds: float) -> int:
        """Ready replicas that have had no shard for so long."""
        return len(self._idle(seconds))

    def note_idle(self, seconds: float, reason: str | None) -> None:
        """Why those have none."""
        for member in self._idle(seconds):
            if member.note != reason:
                member.note = reason
                self._changed.add(member)

    def remarks(self) -> dict[str, str]:
        """Why replicas that came to nothing did not work, by the name that people know them by."""
        last = {member.lane: member for member in self._members}
        return {lane_of(one.name): one.note for _, one in sorted(last.items()) if one.note is not None}

    def _idle(self, seconds: float) -> list[ReplicaHandle]:
        now = time.monotonic()
        ready = self._in(MemberState.READY)
        return [member for member in ready if member.idle is not None and now - member.idle > seconds]

    def stop(self) -> None:
        """End all replicas."""
        with self._guard:
            self._stopped = True
            for member in self._members:
                if member.state is not MemberState.GONE:
                    member.kill()

    # -- starting -------------------------------------------------------------------------

    def _begin_due(self) -> None:
        now = time.monotonic()
        for lane in [lane for lane, at in self._due.items() if at <= now and self._may_begin(lane)]:
            with self._guard:
                if self._stopped:
                    return
                if self._begin(lane):
                    del self._due[lane]
                else:
                    self._due[lane] = now + _LONGEST_PAUSE

    def _begin(self, lane: int) -> bool:
        """Ask Ray for a lane's next replica; false where it had better rest."""
        steps = self._ledger.shrink_steps() if self._ledger else 0
        name = replica_name(self._prefix, lane, self._generation[lane])
        spent = set(self._ledger.excluded(lane_of(name))) if self._ledger else set()
        if self._rests(lane, spent):
            return False
        self._avoided[lane] = spent
        avoid = spent | self._cordoned
        avoid |= {
            node for node, end in self._leaving_nodes.items() if end > time.monotonic() - SILENT_SECONDS
        }
        spec = shrunk(self._spec, steps, self._seqs)
        options = actor_options(self._places.ask, self._cluster, avoid=avoid)
        member = launch(name, lane, spec, options, slots=SLOTS)
        self._generation[lane] += 1
        self._members.append(member)
        self._changed.add(member)
        return True

    def _rests(self, lane: int, spent: set[str]) -> bool:
        """Whether a lane's last replica died on a node that it was to avoid: no other node had room.

        Such as the one bad GPU of eight. It is tried again when no other replica is ready.
        """
        last = next((member for member in reversed(self._members) if member.lane == lane), None)
        if last is None or last.node not in spent & self._avoided[lane] or not self._in(MemberState.READY):
            return False
        last.note = "rests: its engines died on that node again and again, and no other has room"
        self._changed.add(last)
        return True

    def _look_for_places(self) -> None:
        starting = self._in(MemberState.STARTING)
        before = {member: member.note for member in starting}
        for member in self._places.look(starting):
            self._end(member)
            self._due[member.lane] = 0.0
        self._changed.update(member for member in starting if member.note != before[member])

    def _may_begin(self, lane: int) -> bool:
        """Not before a lack of memory is charged: its successor is to be smaller."""
        thread = self._unsettled.get(lane)
        return thread is None or not thread.is_alive()

    def _poll_starting(self) -> None:
        for member in self._in(MemberState.STARTING):
            try:
                ready = member.poll()
            except ReplicaLostError as error:
                if self._may_live(member, error):
                    member.ask_again()
                else:
                    self._lose(member, error)
            except (EngineError, ConfigError) as error:
                self._lose(member, self._judged(member, error))
            else:
                if ready:
                    self._note_ready(member)
                elif member.is_overdue(START_SECONDS):
                    self._lose(member, EngineStartError(f"not ready after {START_SECONDS:.0f} s"))

    def _judged(self, member: ReplicaHandle, error: EngineError | ConfigError) -> EngineStartError:
        """What a failed start is charged as. Once an engine has started, no start refuses the job.

        Raises:
            EngineStartError, ConfigError: no engine has, and none will.
        """
        oom = bool(getattr(error, "oom", False))
        untried = any(
            one is not member and not self._failures[one.lane] for one in self._in(MemberState.STARTING)
        )
        hopeful = oom or (untried and not isinstance(error, ConfigError))
        if not (self.starts() or hopeful):
            raise error
        return error if isinstance(error, EngineStartError) else EngineStartError(str(error), oom=oom)

    def _note_ready(self, member: ReplicaHandle) -> None:
        assert member.start is not None
        self._ready.append(member.start)
        self._seqs = self._seqs or member.max_num_seqs
        self._failures[member.lane] = 0
        self._changed.add(member)
        if member.node in self._leaving_nodes:
            self._drain(member, 0.0)

    # -- watching -------------------------------------------------------------------------

    def _ask(self) -> list[ReplicaStatus]:
        found = []
        answers = statuses(self._in(MemberState.READY, MemberState.LEAVING), _STATUS_SECONDS)
        for member, answer in answers.items():
            if isinstance(answer, ReplicaStatus):
                member.heard, member.unsure = time.monotonic(), None
                found.append(answer)
                self._note_work(member, answer.sessions)
                if member.state is MemberState.LEAVING and not answer.sessions:
                    self._end(member)
            elif answer is not None and not self._may_live(member, answer):
                self._lose(member, answer)
            elif time.monotonic() - member.heard > min(SILENT_SECONDS, self._spec.stall_seconds):
                self._lose(member, EngineDeadError("the replica says nothing", stuck=True))
            if member.state is MemberState.LEAVING and time.monotonic() > member.leave_by:
                self._end(member)
        return found

    def _note_work(self, member: ReplicaHandle, sessions: int) -> None:
        if not sessions:
            member.idle = member.idle or time.monotonic()
            return
        member.idle = None
        if member.note is not None:
            member.note = None
            self._changed.add(member)

    def _may_live(self, member: ReplicaHandle, error: Exception) -> bool:
        """Whether only a call was lost, as far as Ray and its node show, and not yet for too long."""
        if not (isinstance(error, ReplicaLostError) and error.unsure):
            return False
        member.unsure = member.unsure or time.monotonic()
        if time.monotonic() - member.unsure > SILENT_SECONDS:
            return False
        node = member.node or node_of(member.replica.actor_id)
        return not is_gone(member.replica.actor_id, node)

    def _drain(self, member: ReplicaHandle, seconds: float) -> None:
        member.state = MemberState.LEAVING
        member.leave_by = time.monotonic() + seconds + 3.0
        member.replica.actor.drain.remote(seconds)
        self._changed.add(member)
        self._due[member.lane] = 0.0

    def _end(self, member: ReplicaHandle) -> None:
        member.kill()
        self._changed.add(member)

    def _lose(self, member: ReplicaHandle, error: BaseException) -> None:
        leaving = member.state is MemberState.LEAVING
        member.node = member.node or node_of(member.replica.actor_id)
        self._end(member)
        if self._ledger is not None:
            thread = threading.Thread(
                target=self._account, args=(member, error), name="dray-loss", daemon=True
            )
            if getattr(error, "oom", False):
                self._unsettled[member.lane] = thread
            thread.start()
        if leaving:
            return
        self.restarts += 1
        self._failures[member.lane] += 1
        pause = min(0.2 * 2 ** self._failures[member.lane], _LONGEST_PAUSE)
        self._due[member.lane] = time.monotonic() + pause

    def _account(self, member: ReplicaHandle, error: BaseException) -> None:
        assert self._ledger is not None
        facts = diagnose(member.replica.actor_id, member.node)
        node = member.node or node_of(member.replica.actor_id)  # Ray may know by now with which node it went
        self._ledger.lost(Loss(name=member.name, node=node, error=error, facts=facts))

    def _publish(self) -> None:
        if time.monotonic() - self._published > _PUBLISH_SECONDS:
            self._changed.update(self._in(MemberState.READY))  # shards may have found one out of reach
            self._published = time.monotonic()
        if self._changed and self._ledger is not None:
            self._ledger.publish(sorted(self._changed, key=lambda member: (member.lane, member.began)))
        self._changed.clear()

    def _in(self, *states: MemberState) -> list[ReplicaHandle]:
        return [member for member in self._members if member.state in states]


def replica_name(prefix: str, lane: int, generation: int = 0) -> str:
    """The actor name of a replica; :mod:`dray.places` reads it."""
    return f"{prefix}/replica-{lane}" + (f"~{generation}" if generation else "")
