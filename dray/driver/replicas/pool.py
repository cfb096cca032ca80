"""The replicas of a job: started by the driver, drained before their nodes go, replaced when they die.

The pool decides by what it has seen, and knows no store: the driver publishes what changed here, and judges
what was lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress

from dray.cluster.asking import ReplicaResources
from dray.cluster.base import START_SECONDS, Node
from dray.driver.fleet import Fleet
from dray.driver.intervals import Intervals
from dray.driver.replicas.handle import Loss, ReplicaHandle, ReplicaStart
from dray.driver.replicas.lanes import LONGEST_PAUSE, Budgets, Lanes, on_free_nodes
from dray.driver.replicas.launching import Launcher
from dray.driver.replicas.risky_nodes import RiskyNodes
from dray.driver.replicas.waiting import Places
from dray.driver.shard_tasks.slots import LEAST_SLOTS, slots_of
from dray.driver.watched_time import LOOKS, WatchedTime
from dray.engine.protocol import EngineSpec
from dray.engine.replica import ReplicaStatus
from dray.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    NotImportedError,
    ReplicaLostError,
)
from dray.notices.notice import SOON
from dray.store import ReplicaState

SILENT_SECONDS = 60.0
"""A replica that is silent for so long, while the driver looks, is ended: its node hangs, or the network."""

DRAIN_SECONDS = 10.0
"""For requests in flight to finish, once a notice came: with 5 s for the rest, a drain takes 15."""


class ReplicaPool:
    """Owns the replicas' processes: they end with the process that made them.

    ``replicas`` start, and there may be ``most`` later. ``shard_rows`` are the rows of a shard, on average:
    the smaller, the more of them a replica has at a time.
    """

    def __init__(
        self,
        prefix: str,
        spec: EngineSpec,
        fleet: Fleet,
        replicas: int,
        intervals: Intervals | None = None,
        *,
        most: int | None = None,
        shard_rows: float = float("inf"),
    ) -> None:
        self._fleet = fleet
        self._intervals = intervals or Intervals()
        self._replicas: list[ReplicaHandle] = []
        self._lanes = Lanes(replicas, self._intervals.relaunch)
        self._changed: set[ReplicaHandle] = set()
        self._placed: set[ReplicaHandle] = set()  # whose place was told
        self._risky = RiskyNodes(SILENT_SECONDS)
        self._launcher = Launcher(prefix, spec, fleet, self._risky)
        self._ready: list[ReplicaStart] = []
        self._losses: list[Loss] = []
        self._shard_rows = shard_rows
        self._published = time.monotonic()
        self._places = Places(spec, fleet, most or replicas)
        self._silent_seconds = min(SILENT_SECONDS, spec.stall_seconds)
        self.watched = WatchedTime(self._silent_seconds / LOOKS)

    # -- what the driver sees -----------------------------------------------------------------

    @property
    def ask(self) -> ReplicaResources:
        """What each replica asks the cluster for."""
        return self._places.ask

    @property
    def lanes(self) -> int:
        """Replicas that there are to be."""
        return len(self._lanes)

    def ready(self) -> int:
        """Replicas that can take work."""
        return len(self._in(ReplicaState.READY))

    def nodes(self) -> set[str]:
        """The nodes of replicas that start, can take work, or finish what they have: they are paid for."""
        return {node for nodes in self.held() for node in nodes}

    def held(self) -> list[tuple[str, ...]]:
        """The nodes of each such replica that has any."""
        live = self._in(ReplicaState.STARTING, ReplicaState.READY, ReplicaState.LEAVING)
        return [one.nodes for one in live if one.nodes]

    def working_on(self) -> list[tuple[str, ...]]:
        """The nodes of each replica that can take work."""
        return [one.nodes for one in self._in(ReplicaState.READY)]

    def starts(self) -> list[ReplicaStart]:
        """How the starts went of all replicas that could take work so far."""
        return [replica.start for replica in self._replicas if replica.start is not None]

    def take_ready(self) -> list[ReplicaStart]:
        """The starts that came to their end since the last call."""
        found, self._ready = self._ready, []
        return found

    def take_losses(self) -> list[Loss]:
        """The replicas that died since the last call."""
        found, self._losses = self._losses, []
        return found

    def take_changed(self) -> list[ReplicaHandle]:
        """The replicas with something new since the last call; now and then all that are ready."""
        if time.monotonic() - self._published > self._intervals.publish:
            self._changed.update(self._in(ReplicaState.READY))  # shards may have found one out of reach
            self._published = time.monotonic()
        found = sorted(self._changed, key=lambda replica: (replica.lane, replica.began))
        self._changed.clear()
        return found

    def put_back(self, changed: Collection[ReplicaHandle]) -> None:
        """The store was not told of these."""
        self._changed.update(changed)

    def waiting(self) -> str | None:
        """How many replicas wait for a place, and why; None where none does."""
        notes = [one.note for one in self._in(ReplicaState.STARTING) if one.note is not None]
        return f"{len(notes)} of {self.lanes} replicas wait: each {notes[-1]}" if notes else None

    def idle(self, seconds: float) -> list[ReplicaHandle]:
        """Ready replicas that have had no shard for so long."""
        now, ready = self.watched(), self._in(ReplicaState.READY)
        return [replica for replica in ready if replica.idle is not None and now - replica.idle > seconds]

    def unused(self, seconds: float) -> list[ReplicaHandle]:
        """The replicas that were idle for so long, on nodes where no replica of the job works."""
        return on_free_nodes(self.idle(seconds), self._in(ReplicaState.READY, ReplicaState.LEAVING))

    def note(self, replica: ReplicaHandle, note: str | None) -> None:
        """Why a replica has no work."""
        if replica.note != note:
            replica.note = note
            self._changed.add(replica)

    # -- what the driver has done ---------------------------------------------------------------

    def look(self) -> list[ReplicaStatus]:
        """See who is ready, leaves or died; what the live ones have said since the last look.

        Raises:
            EngineStartError, ConfigError: no engine of the job has ever started, and none will.
        """
        self.watched.look()
        self._poll_starting()
        self._look_for_places()
        return self._follow()

    def live(self) -> set[str]:
        """The names of replicas that can take work, or finish what they have."""
        return {replica.name for replica in self._in(ReplicaState.READY, ReplicaState.LEAVING)}

    def ask_now(self, names: Collection[str]) -> None:
        """Ask those of these that are not known to be gone how they are: shard tasks lost them."""
        for replica in self._in(ReplicaState.READY, ReplicaState.LEAVING):
            if replica.name in names:
                replica.process.ask_status()

    def last_words(self, seconds: float) -> list[ReplicaStatus]:
        """What the replicas that are ready say within ``seconds``, at the end of the job."""
        found: dict[str, ReplicaStatus] = {}
        ready, deadline = self._in(ReplicaState.READY), time.monotonic() + seconds
        for replica in ready:
            replica.process.ask_status()
        while len(found) < len(ready) and time.monotonic() < deadline:
            for replica in ready:
                with suppress(Exception):  # it is ended in a moment anyhow
                    status = replica.process.status()
                    if status is not None:
                        found[replica.name] = status
            time.sleep(0.01)
        return list(found.values())

    def launch_due(self, budgets: Budgets) -> None:
        """Ask for the replicas that are due.

        Raises:
            StoreError: that of ``budgets``; the next call does what is left.
        """
        for lane in self._lanes.due():
            name = self._launcher.lane_name(lane)
            if budgets.undecided(name):
                continue
            if self._launch(lane, budgets.shrink_steps(), set(budgets.excluded(name))):
                self._lanes.started(lane)
            else:
                self._lanes.want(lane, LONGEST_PAUSE)

    def resize(self, lanes: int, unused: Collection[ReplicaHandle] = ()) -> None:
        """Have so many replicas: more are due at once. Of too many, starting ones go, then ``unused`` ones.

        Each of those that go ends what it may have been given meanwhile.
        """
        self._lanes.open(lanes - self.lanes)
        for lane in self._lanes.spare(self._replicas, unused)[: max(self.lanes - lanes, 0)]:
            self._close(lane)

    def unplaced(self, seconds: float) -> int:
        """Replicas that had waited for longer than ``seconds`` when the pool last looked at places."""
        starting, looked = self._in(ReplicaState.STARTING), self._places.looked
        return sum(one.placed is None and looked - one.asked > seconds for one in starting)

    def _close(self, lane: int) -> None:
        self._lanes.close(lane)
        for replica in [replica for replica in self._replicas if replica.lane == lane]:
            replica.retired = True
            self._changed.add(replica)
            if replica.state is ReplicaState.STARTING:
                self._end(replica)
            elif replica.state is ReplicaState.READY:
                self._drain(replica, DRAIN_SECONDS)

    def drain_node(self, node: Node, deadline: float | None) -> None:
        """A node is taken back at ``deadline`` (seconds since 1970): its replicas finish, others begin."""
        left = (deadline - time.time()) if deadline is not None else SOON
        # Before its end: the cluster is to see it come.
        self._fleet.drain(node, time.time() + max(left - 5.0, 1.0))
        self._risky.note_end(node.node_id, left)
        for replica in self._in(ReplicaState.READY):
            if node.node_id in replica.nodes:
                self._drain(replica, max(0.0, min(DRAIN_SECONDS, left - 5.0)))
        for replica in self._in(ReplicaState.STARTING):
            if node.node_id in (replica.process.node(), *replica.process.others()):
                self._end(replica)  # what it has loaded is lost either way
                self._lanes.want(replica.lane)

    def wait_on(self) -> None:
        """A node has more of the model's weights: the time limit of replicas that start begins anew."""
        for replica in self._in(ReplicaState.STARTING):
            replica.placed = replica.placed and self.watched()

    def cordon(self, node: Node) -> None:
        """A node may be taken back: it gets no new replicas while another can have them."""
        self._risky.cordon(node.node_id)

    def stop(self) -> None:
        """End all replicas."""
        for replica in self._replicas:
            if replica.state is not ReplicaState.GONE:
                replica.kill()

    # -- starting -----------------------------------------------------------------------------

    def _launch(self, lane: int, steps: int, spent: set[str]) -> bool:
        """Ask for a lane's next replica; false where the lane had better rest."""
        if self._rests(lane, spent):
            return False
        process = self._launcher.launch(lane, self._places, steps=steps, spent=spent)
        if process is None:
            return False
        replica = ReplicaHandle(lane=lane, process=process, slots=LEAST_SLOTS, watched=self.watched)
        self._replicas.append(replica)
        self._changed.add(replica)
        return True

    def _rests(self, lane: int, spent: set[str]) -> bool:
        """Whether a lane's last replica died on a node that it was to avoid: no other node had room.

        Such as the one bad GPU of eight. It is tried again when no other replica is ready.
        """
        last = next((one for one in reversed(self._replicas) if one.lane == lane), None)
        if last is None or not self._launcher.was_to_avoid_its_node(last, spent) or not self.ready():
            return False
        self.note(last, "rests: its engines died on that node again and again, and no other has room")
        return True

    def _look_for_places(self) -> None:
        starting = self._in(ReplicaState.STARTING)
        before = {replica: replica.note for replica in starting}
        working = self._in(ReplicaState.READY, ReplicaState.LEAVING)
        for replica in self._places.look(starting, sum(len(one.nodes) for one in working)):
            self._end(replica)
            self._lanes.want(replica.lane)
        self._changed.update(replica for replica in starting if replica.note != before[replica])
        fresh = {replica for replica in starting if replica.place is not None} - self._placed
        self._placed |= fresh
        self._changed |= fresh

    def _poll_starting(self) -> None:
        for replica in self._in(ReplicaState.STARTING):
            try:
                ready = replica.poll()
            except ReplicaLostError as error:
                if replica.may_live(error, SILENT_SECONDS):
                    replica.ask_again()
                else:
                    self._lose(replica, error)
            except (EngineError, ConfigError) as error:
                self._lose(replica, self._judged(replica, error))
            else:
                if ready:
                    self._note_ready(replica)
                elif replica.is_overdue(START_SECONDS):
                    self._lose(replica, EngineStartError(f"not ready after {START_SECONDS:.0f} s"))

    def _judged(self, replica: ReplicaHandle, error: EngineError | ConfigError) -> EngineStartError:
        """What a failed start is charged as. Once an engine has started, no start refuses the job.

        Raises:
            EngineStartError, ConfigError: no engine has, and none will: not for what one node cannot import.
        """
        oom = bool(getattr(error, "oom", False))
        others = [one for one in self._in(ReplicaState.STARTING) if one is not replica]
        untried = any(not self._lanes.failures[one.lane] for one in others)
        hopeful = oom or (untried and not isinstance(error, ConfigError))
        if not (self.starts() or hopeful or isinstance(error, NotImportedError)):
            raise error
        return error if isinstance(error, EngineStartError) else EngineStartError(str(error), oom=oom)

    def _note_ready(self, replica: ReplicaHandle) -> None:
        assert replica.start is not None
        self._ready.append(replica.start)
        replica.slots = slots_of(replica.max_num_seqs, self._shard_rows)
        self._launcher.note_size(replica.max_num_seqs)
        self._lanes.failures[replica.lane] = 0
        self._changed.add(replica)
        if any(self._risky.is_leaving(node) for node in replica.nodes):
            self._drain(replica, 0.0)

    # -- watching -----------------------------------------------------------------------------

    def _follow(self) -> list[ReplicaStatus]:
        """What replicas have said; those that say nothing, or are done, are ended."""
        found = []
        for replica in self._in(ReplicaState.READY, ReplicaState.LEAVING):
            try:
                status = replica.status(self._intervals.status)
            except Exception as error:  # noqa: BLE001  whatever it is, that replica does not work
                if not replica.may_live(error, SILENT_SECONDS):
                    self._lose(replica, error)
                    continue
            else:
                if status is not None:
                    found.append(status)
                    self._note_status(replica, status)
            self._look_at_the_clock(replica)
        return found

    def _note_status(self, replica: ReplicaHandle, status: ReplicaStatus) -> None:
        replica.heard, replica.unsure = self.watched(), None
        if status.sessions:
            replica.idle = None
            self.note(replica, None)
            return
        replica.idle = replica.idle or self.watched()
        if replica.state is ReplicaState.LEAVING:
            self._end(replica)

    def _look_at_the_clock(self, replica: ReplicaHandle) -> None:
        now = self.watched()
        if replica.state is ReplicaState.GONE:
            return
        if now - replica.heard > self._silent_seconds:
            self._lose(replica, EngineDeadError("the replica says nothing", stuck=True))
        elif replica.state is ReplicaState.LEAVING and now > replica.leave_by:
            self._end(replica)

    def _drain(self, replica: ReplicaHandle, seconds: float) -> None:
        replica.state = ReplicaState.LEAVING
        replica.leave_by = self.watched() + seconds + 3.0
        replica.process.drain(seconds)
        self._changed.add(replica)
        self._lanes.want(replica.lane)

    def _end(self, replica: ReplicaHandle) -> None:
        replica.kill()
        self._changed.add(replica)

    def _lose(self, replica: ReplicaHandle, error: BaseException) -> None:
        leaving = replica.state is ReplicaState.LEAVING
        replica.node = replica.node or replica.process.node()
        self._end(replica)
        hopeful = self._lanes.is_hopeful(replica.lane, self._replicas)
        if isinstance(error, NotImportedError) and replica.node is not None:
            hopeful = self._places.shun(replica.node) or hopeful
        self._losses.append(Loss(replica=replica, error=error, hopeful=hopeful))
        if not leaving:
            self._lanes.failed(replica.lane)

    def _in(self, *states: ReplicaState) -> list[ReplicaHandle]:
        return [replica for replica in self._replicas if replica.state in states]
