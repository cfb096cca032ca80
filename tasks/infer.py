"""Fan the shards out: one Prefect task each, under RayTaskRunner, on stable nodes."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from contextlib import suppress
from types import TracebackType
from typing import Any

import ray
from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Crashed
from prefect_ray.context import remote_options

from dray.cluster import STABLE_SHARE, ClusterInfo
from dray.cluster.pool import SLOTS
from dray.errors import DrayError, JobFailedError, JobPausedError, StoreError
from dray.job.idling import Bound, bound_of
from dray.job.ingesting import open_shards
from dray.job.lapsed import LapsedLeases
from dray.job.opening import OpenJob
from dray.shard.pump import ShardReceipt
from dray.store import ReplicaState, Shard, ShardState, Store, open_store
from tasks.failing import note_failure
from tasks.infer_shard import ShardWork, infer_shard
from tasks.monitor import Monitor
from tasks.ray_runner import HeardRayTaskRunner
from tasks.settling import note_end

MAX_CRASHES = 3  # of one shard's own worker process, which runs on a stable node
HUNG_SECONDS = 90.0
"""A shard task is given up when its lease has been over for so long: a living one renews it, or ends."""
_END_SECONDS = 5.0
_LOOK_EVERY = 5.0  # at shards that another process holds, and suspects that wait
_LOOK_AT_LEAST = 30.0  # at shards whose own task may stand still
_PAUSE = 0.2
_EARLY = 8  # shard tasks that start before there is a replica for them: their processes take seconds, too
_LOOK_SHARE = 20  # a pause is so many times as long as the look at all shards took


class ShardTasks:
    """The shard tasks of a job, a few at a time, while in the ``with`` block.

    The first of them are submitted at once: their processes start, and wait, beside the replicas'. Others
    follow as replicas become ready, two for each, up to ``bound``. Which shards are open is read in the store
    after each: so the splits of a shard come in, and none is forgotten.
    """

    def __init__(
        self,
        job: OpenJob,
        shards: list[Shard],
        lanes: int,
        cluster: ClusterInfo,
        bound: Bound | None = None,
    ) -> None:
        self._job = job
        self._waiting = deque(open_shards(shards))
        self._awaited: frozenset[int] = frozenset()  # shards that a replica is kept free for
        self._running: dict[Any, tuple[Any, Shard]] = {}
        self._bound = bound or Bound(tasks=SLOTS * lanes)
        self._limit = min(self._bound.tasks, _EARLY)
        self._look_cost = 0.0  # seconds
        self._crashes: Counter[int] = Counter()
        self._lapsed = LapsedLeases(HUNG_SECONDS)
        self._runner = HeardRayTaskRunner()
        self._options = _stable(cluster)
        self._last_commit: float | None = None
        self._look_at = math.inf  # monotonic: when to read the store again

    def __enter__(self) -> ShardTasks:
        self._runner.__enter__()
        with remote_options(**self._options):
            self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            note_failure(self._job, error)  # those that run, or wait for a place, end by themselves
        try:
            self._end()
        finally:
            self._runner.__exit__(kind, error, trace)

    def run(self, monitor: Monitor) -> float | None:
        """Run all open shards; returns when each is done, or the job was cancelled.

        Returns:
            The time of the last commit, in seconds since 1970; None when there was none.

        Raises:
            JobFailedError: a shard failed for good.
        """
        monitor.bound = self._bound.told
        while self._running or (not monitor.stopping and self._open()):
            self._collect()
            monitor.check()
            if monitor.store_away:  # no task can renew its lease either, however well it is
                self._lapsed.forget()
            self._refresh()
            self._limit = min(self._bound.tasks, SLOTS * monitor.ready + _EARLY)
            if not monitor.stopping:
                with remote_options(**self._options):
                    self._fill()
        return self._last_commit

    def _open(self) -> bool:
        return bool(self._waiting) or self._look_at < math.inf

    def _collect(self) -> None:
        if not self._running:
            time.sleep(_PAUSE)
            return
        done, _ = ray.wait(list(self._running), num_returns=1, timeout=1.0)
        for reference in done:
            self._take(reference)
            self._look_soon()

    def _look_soon(self) -> None:
        """At once, except where a look at all shards takes long: then after some pause."""
        pause = min(_LOOK_SHARE * self._look_cost, _LOOK_EVERY)
        self._look_at = min(self._look_at, time.monotonic() + pause)

    def _refresh(self) -> None:
        """Read which shards are open: held ones whose holder is gone come back when their lease lapses."""
        began = time.monotonic()
        if began < self._look_at:
            return
        try:
            with open_store(self._job.settings.store_url, create=False) as store:
                found, now = open_shards(store.shards(self._job.job_id)), store.now()
                self._awaited = _awaited(store, self._job.job_id)
        except StoreError:  # the monitor says so
            self._lapsed.forget()
            self._look_at = time.monotonic() + _LOOK_EVERY
            return
        self._give_up_hung(found, now)
        running = {shard.number for _, shard in self._running.values()}
        idle = [shard for shard in found if shard.number not in running]
        held = [
            shard for shard in idle if shard.state is ShardState.LEASED and (shard.lease_until or 0) > now
        ]
        # Suspects first: the search for a bad row takes a start of an engine for each halving.
        self._waiting = deque(sorted((one for one in idle if one not in held), key=self._rank))
        left_out = any(one.crashes for one in self._waiting)  # a replica may be kept free for one by then
        self._look_cost = time.monotonic() - began
        self._look_at = time.monotonic() + _LOOK_EVERY if held or left_out else math.inf
        self._look_at_least()

    def _look_at_least(self) -> None:
        """Look now and then while a task runs: one that stands still ends nothing, and says nothing."""
        if self._running:
            self._look_at = min(self._look_at, time.monotonic() + _LOOK_AT_LEAST)

    def _give_up_hung(self, found: list[Shard], now: float) -> None:
        """Free the shards whose task's process stands still: it neither renews its lease nor ends.

        If it goes on later, its commits are fenced, as those of any holder whose lease lapsed.

        Raises:
            JobPausedError: that happened too often to one shard.
        """
        hung = self._lapsed.look(found, now)
        for reference, (future, shard) in list(self._running.items()):
            if shard.number in hung:
                del self._running[reference]
                self._give_up(reference, future, shard)

    def _give_up(self, reference: Any, future: Any, shard: Shard) -> None:
        told = f"shard {shard.number}: its worker process stands still, {HUNG_SECONDS:.0f} s after its lease"
        self._crashes[shard.number] += 1
        self._lapsed.forget(shard.number)
        with suppress(ray.exceptions.RayError):
            ray.cancel(reference, force=True)
        note_end(future.task_run_id, Crashed(message=told))
        if self._crashes[shard.number] > MAX_CRASHES:
            raise JobPausedError(f"{told}; look at the stable nodes, then `dray resume` goes on")
        get_run_logger().warning("%s; running it again", told)

    def _rank(self, shard: Shard) -> tuple[bool, int, int]:
        return shard.number not in self._awaited, -shard.crashes, shard.number

    def _next(self) -> Shard | None:
        """The shard to submit: up to the limit any, beyond it one that those who fill it may wait for."""
        if not self._waiting:
            return None
        beyond = len(self._running) >= self._limit
        return None if beyond and self._waiting[0].number not in self._awaited else self._waiting.popleft()

    def _fill(self) -> None:
        while (shard := self._next()) is not None:
            future = _submit(self._runner, self._job, shard)
            self._running[future.wrapped_future] = (future, shard)
        self._look_at_least()

    def _take(self, reference: Any) -> None:
        future, shard = self._running.pop(reference)
        future.wait()
        state: State = future.state
        note_end(future.task_run_id, state)
        if state.is_completed():
            self._note(state)
        elif state.is_crashed() and self._crashes[shard.number] < MAX_CRASHES:
            self._crashes[shard.number] += 1
            get_run_logger().warning("shard %d: its worker process died; running it again", shard.number)
            # Freed now: its holder is known to be dead, and its lease need not lapse.
            with suppress(StoreError), open_store(self._job.settings.store_url, create=False) as store:
                store.take_back(
                    self._job.lease, shard.number, cause="NODE_LOSS", detail="worker process died"
                )
        else:
            raise _failure(state, shard)

    def _note(self, state: State) -> None:
        receipt = state.result()
        if isinstance(receipt, ShardReceipt) and receipt.last_commit is not None:
            self._last_commit = max(self._last_commit or 0.0, receipt.last_commit)

    def _end(self) -> None:
        """Let tasks that are left end by themselves, because of what ended the others, or end them."""
        left = list(self._running)
        if left:
            _, left = ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)
        for reference in left:
            ray.cancel(reference)
        if left:
            ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)


def bound_tasks(job: OpenJob, lanes: int, cluster: ClusterInfo) -> Bound:
    """How many shard tasks may run at a time; says what binds, where that leaves replicas without work."""
    connections = None
    with suppress(StoreError), open_store(job.settings.store_url, create=False) as store:
        connections = store.most_connections()
    memory = sum(node.memory for node in cluster.nodes if node.stable)
    bound = bound_of(lanes=lanes, slots=SLOTS, memory=memory, connections=connections)
    if bound.told is not None:
        get_run_logger().warning("%d replicas, but %s", lanes, bound.told)
    return bound


def _stable(cluster: ClusterInfo) -> dict[str, Any]:
    """Ray options of shard tasks. Ray's own retries are off: exactly one layer retries, Prefect's."""
    return {"max_retries": 0, "num_cpus": 0, "resources": {cluster.stable_resource: STABLE_SHARE}}


def _submit(runner: Any, job: OpenJob, shard: Shard) -> Any:
    work = ShardWork(
        job=job.lease, shard=shard, store_url=job.settings.store_url, objects=job.settings.objects
    )
    return runner.submit(infer_shard, parameters={"number": shard.number, "work": work})


def _awaited(store: Store, job_id: str) -> frozenset[int]:
    """Suspects that have reserved a replica, one per replica: it takes no other shard until they have run."""
    ready = (row for row in store.replicas(job_id) if row.state is ReplicaState.READY)
    return frozenset(row.reserved for row in ready if row.reserved is not None)


def _failure(state: State, shard: Shard) -> DrayError:
    try:
        state.result()
    except DrayError as error:
        return error
    except BaseException as error:  # noqa: BLE001  whatever it was, it failed the shard
        return JobFailedError(f"shard {shard.number} failed: {type(error).__name__}")
    return JobFailedError(f"shard {shard.number} ended as {state.name}")
