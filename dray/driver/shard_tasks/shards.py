"""Which shards run: their tasks are started as replicas have places, and run again when they end early."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dray.driver.events import Event, ShardFinished, ShardSubmitted, Told, Warned
from dray.driver.executor import Executor, TaskEnd
from dray.driver.intervals import LOOK_SHARE
from dray.driver.shard_tasks.crashes import Crashes
from dray.driver.shard_tasks.idling import Bound, standby_of
from dray.driver.shard_tasks.lapsed import LapsedLeases, Unclaimed
from dray.driver.shard_tasks.refusals import Refusals
from dray.driver.shard_tasks.slots import LEAST_SLOTS
from dray.driver.shard_tasks.views import rank, replica_views, shard_view
from dray.engine.replica import FLUSH_SECONDS
from dray.failures.facts import Cause
from dray.job.open_job import OpenJob
from dray.job.rows.ingesting import open_shards
from dray.scheduling import Backlog, starts, with_place
from dray.shard.task import Ended, TaskResult
from dray.shard.work import ShardWork
from dray.store import ReplicaRow, Shard, Store

HUNG_SECONDS = 90.0
"""A shard task is given up when its lease has been over for so long: a living one renews it, or ends."""

EARLY = 8
"""Shard tasks that start at most before there is a replica for them: their processes take seconds, too."""

COMMITS_PER_SECOND = 500
"""Transactions of all shard tasks together, where rows come more slowly than a full micro-batch each."""

UNCLAIMED_SECONDS = 600.0
"""The same for a task that does not claim its place: hundreds of processes start on one node in minutes."""

ENDING_SECONDS = 30.0
"""A job that is to stop waits so long for tasks without a lease: a living one ends at once, or has one."""

_LOOK_AT_LEAST = 30.0  # at shards whose own task may stand still
_LEAST_PAUSE = 0.01


class ShardTasks:
    """The shard tasks of a job. Which shards are open is read in the store, so that none is forgotten."""

    def __init__(
        self,
        job: OpenJob,
        executor: Executor,
        emit: Callable[[Event], None],
        *,
        lanes: int,
        bound: Bound,
        look_every: float,
        watched: Callable[[], float],
    ) -> None:
        self._job = job
        self._executor = executor
        self._emit = emit
        self._lanes = lanes
        self._bound = bound
        self._look_every = look_every
        self._running: dict[int, Shard] = {}
        self._open = True  # whether shards may be left that no task runs
        self._may_change = True  # whether idle shards may come to run though no task ends
        self._ready = 0
        self._look_at = self._look_cost = 0.0  # monotonic; seconds
        self._crashes = Crashes()
        self._dead: list[tuple[int, str]] = []  # shards whose task crashed and how, until the store was told
        self._lapsed = LapsedLeases(HUNG_SECONDS, watched)
        self._unclaimed = Unclaimed(UNCLAIMED_SECONDS, watched)
        self._refusals = Refusals(watched)
        self._watched = watched
        self._stopping = False
        self._held_at = watched()  # of a job that is to stop: when a task that runs last had a lease

    @property
    def running(self) -> bool:
        """Whether any task runs."""
        return bool(self._running)

    @property
    def ending(self) -> bool:
        """Whether a task runs for which a job that is to stop waits."""
        return self.running and self._watched() - self._held_at <= ENDING_SECONDS

    @property
    def left(self) -> bool:
        """Whether there are shards to run, or may be: so the last look at the store says."""
        return self._open or self.running

    @property
    def without_connection(self) -> str | None:
        """Why shard tasks wait for a connection to the store; None where none does, as far as is known."""
        return self._refusals.told

    def resize(self, lanes: int, bound: Bound) -> None:
        """The pool is to have so many replicas from now on."""
        self._lanes, self._bound = lanes, bound
        self.look_soon()

    def prestart(self, shards: Sequence[Shard]) -> None:
        """Start the first tasks, before any replica is there and without the store."""
        for shard in open_shards(shards)[: self._tasks_ahead()]:
            self._submit(shard, "ahead")

    # -- tasks that ended ---------------------------------------------------------------------

    def take(self, ends: Sequence[TaskEnd]) -> None:
        """These tasks have ended.

        Raises:
            DrayError: what the job ends with.
            JobPausedError: for too long no task has had a connection to the store.
        """
        for end in ends:
            self._running.pop(end.number, None)
            self._refusals.ended(end.number)
            if end.error is not None:
                raise end.error
            if end.crashed:
                self._note_crash(end)
            elif end.result is not None:
                self._note_result(end.number, end.result)
            self._open = True  # until the store says that nothing is left
            self.look_soon()

    def _note_result(self, number: int, result: TaskResult) -> None:
        for reason in result.interrupted:
            self._emit(Told(line=reason))
        if result.how is Ended.NO_CONNECTION:
            if self._refusals.refused(number, result.message):
                self._emit(Warned(line=f"shard {number} waits for a connection: {self.without_connection}"))
            return
        self._refusals.connected()
        self._emit(ShardFinished(number=number, how=result.how, receipt=result.receipt))

    def _note_crash(self, end: TaskEnd) -> None:
        number = end.number
        died = "worker process died" if end.cause is None else f"task ended early ({end.cause})"
        told = f"shard {number}: its {died}"
        pause = self._crashes.died(number, told)
        self._emit(Warned(line=f"{told}; running it again" + (f" in {pause:.0f} s" if pause else "")))
        self._dead.append((number, died))

    # -- shards to run --------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Look at the store at once, except where a look at all shards takes long: then after some pause."""
        pause = min(LOOK_SHARE * self._look_cost, self._look_every)
        self._look_at = min(self._look_at, time.monotonic() + pause)

    def pause(self, most: float) -> float:
        """Seconds to wait for a task to end: fewer where none runs and the store is to be read before."""
        if self._running:
            return most
        return min(most, max(self._look_at - time.monotonic(), _LEAST_PAUSE))

    def forget_lapsed(self) -> None:
        """The store is away: no task can renew its lease, however well it is."""
        self._forget()
        self._refusals.connected()
        self._held_at = self._watched()

    def schedule(self, store: Store, ready: int, *, start: bool = True) -> None:
        """Read which shards are open, give up those that stand still, and start what has a place.

        ``start`` false starts nothing: the job is to stop, and its tasks are waited for.

        Raises:
            StoreError: the next call does what is left.
            JobBlockedError: a task stood still too often.
        """
        if ready != self._ready:
            self._ready = ready
            self.look_soon()
        if start:
            self._held_at = self._watched()
        elif not self._stopping:
            self._stopping = self._may_change = True
            self.look_soon()
        began = time.monotonic()
        if began < self._look_at:
            return
        self._free_the_dead(store)
        found, replicas, now = self._read(store)
        self._give_up_hung(found, now)
        self._note_leases(found, now)
        self._look_cost = time.monotonic() - began  # without the starts: Prefect takes 0.1 s for each
        if start:
            self._start(found, replicas, now)
        self._look_at = self._next_look()

    def _next_look(self) -> float:
        now = time.monotonic()
        usual = now + (self._look_every if self._may_change else _LOOK_AT_LEAST)
        return min(usual, self._crashes.next_end(now))

    def _read(self, store: Store) -> tuple[list[Shard], list[ReplicaRow], float]:
        job_id = self._job.job_id
        ready = store.replicas(job_id, ready_only=True)
        return store.shards(job_id, open_only=True), ready, store.now()

    def _start(self, found: list[Shard], replicas: list[ReplicaRow], now: float) -> None:
        """Start the tasks that are due among the open shards that were ``found``."""
        idle = [shard for shard in found if shard.number not in self._running]
        free = [shard for shard in idle if not (shard.is_leased(now) or self._crashes.rests(shard.number))]
        waiting = {shard.number: shard for shard in free}
        asking = [shard for shard in found if shard.number in self._running and not shard.is_leased(now)]
        self._open = bool(idle)
        # Held shards come back when their lease lapses; for a suspect a replica may be kept free by then.
        self._may_change = any(shard.is_leased(now) or shard.crashes for shard in idle)
        ready = replica_views(found, replicas, now)
        before = [shard_view(shard) for shard in sorted(asking, key=rank)]
        coming = self._lanes - len(ready)
        for start in starts(
            [shard_view(shard) for shard in sorted(waiting.values(), key=rank)],
            before,
            ready,
            coming=coming,
            ahead=self._tasks_ahead(),
            room=self._refusals.most(self._bound.tasks) - len(self._running),
        ):
            self._submit(waiting[start.number], start.why)
        backlog = Backlog(waiting=len(waiting) + len(asking), coming=coming)
        placed = set(with_place(before, ready, backlog))
        for number in self._unclaimed.look(shard for shard in asking if shard.number in placed):
            untaken = f"has left a free place untaken for {UNCLAIMED_SECONDS / 60:.0f} minutes"
            why = "its process hangs, or its node does not reach the store"
            self._give_up(number, f"shard {number}: its task {untaken} ({why})")

    def _tasks_ahead(self) -> int:
        """Tasks that may wait for a place: before there is a replica, those that the first ones will have."""
        if self._ready:
            return standby_of(self._lanes)
        return min(EARLY, LEAST_SLOTS * self._lanes, self._bound.tasks)

    def _submit(self, shard: Shard, why: str) -> None:
        settings = self._job.settings
        work = ShardWork(
            job=self._job.lease,
            shard=shard,
            store_url=settings.store_url,
            objects=settings.rows_access,
            roots=settings.media_roots,
            commit_seconds=commit_seconds(min(self._bound.tasks, LEAST_SLOTS * self._lanes)),
        )
        self._executor.submit(work)
        self._running[shard.number] = shard
        self._refusals.started(shard.number)
        self._forget(shard.number)
        self._emit(ShardSubmitted(number=shard.number, why=why))

    # -- tasks that stand still, or died ----------------------------------------------------------

    def _free_the_dead(self, store: Store) -> None:
        """Shards whose process died are free at once: their leases need not lapse."""
        while self._dead:
            number, died = self._dead[-1]
            store.take_back(self._job.lease, number, cause=Cause.NODE_LOSS, detail=died)
            self._dead.pop()

    def _give_up_hung(self, found: list[Shard], now: float) -> None:
        """Free the shards whose task's process stands still: it neither renews its lease nor ends.

        If it goes on later, its commits are fenced, as those of any holder whose lease lapsed.
        """
        for number in self._lapsed.look(found, now).intersection(self._running):
            still = f"stands still, {HUNG_SECONDS:.0f} s after its lease"
            self._give_up(number, f"shard {number}: its worker process {still}")

    def _give_up(self, number: int, told: str) -> None:
        """End its task, and run the shard again."""
        del self._running[number]
        self._refusals.ended(number)
        self._open = self._may_change = True  # the last look took it for one that runs
        self._forget(number)
        self._executor.cancel(number, told)
        self._crashes.given_up(number, told)
        self._emit(Warned(line=f"{told}; running it again"))

    def _forget(self, number: int | None = None) -> None:
        """Reset how long this shard has stood still, or all of them."""
        self._lapsed.forget(number)
        self._unclaimed.forget(number)

    def _note_leases(self, found: list[Shard], now: float) -> None:
        """Whether any task that runs has a lease: one alone is waited for where the job is to stop."""
        if any(shard.is_leased(now) for shard in found if shard.number in self._running):
            self._held_at = self._watched()


def commit_seconds(tasks: int) -> float:
    """How many seconds a finished row may wait for its commit, by how many shard tasks write to the store."""
    return max(FLUSH_SECONDS, tasks / COMMITS_PER_SECOND)
