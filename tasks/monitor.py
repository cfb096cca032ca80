"""Watch a running job: renew its lease, follow its replicas, say how far it is."""

from __future__ import annotations

import contextvars
import threading
import time
from contextlib import ExitStack, suppress

from prefect import get_run_logger

from dray.cluster import ReplicaPool
from dray.engine import ReplicaStatus
from dray.errors import (
    DrayError,
    JobFailedError,
    StoreError,
)
from dray.job import current_job
from dray.job.deadline import orders_of
from dray.job.idling import why_idle
from dray.job.ledger import JobLedger
from dray.job.opening import OpenJob, reopen
from dray.job.pace import PACE_EVERY, pace_of
from dray.report import Meter, Pulse
from dray.store import Progress, Store
from tasks.events import ErrorShare, tell_of_job, tell_of_node
from tasks.interruptions import InterruptionHandler
from tasks.patience import SHORT_PATIENCE, SpoolWatch, StoreOutage
from tasks.progress_artifact import ProgressArtifact
from tasks.replicas import follow

LOOK_EVERY = 1.0  # seconds
LINE_EVERY = 5.0
_IDLE_SECONDS = 5.0  # without a shard, after which a ready replica is said to have no work
_IDLE_EVERY = 60.0  # between two lines that say so, for one reason


class Monitor:
    """One thread beside the shard tasks. ``check`` raises in the flow what went wrong in it."""

    def __init__(
        self,
        job: OpenJob,
        pool: ReplicaPool,
        ledger: JobLedger,
        noticing: InterruptionHandler,
        bulletin: ProgressArtifact | None = None,
    ) -> None:
        self._job = job
        self._pool = pool
        self._ledger = ledger
        self._noticing = noticing
        self._bulletin = bulletin
        self._logger = get_run_logger()
        self._over = threading.Event()
        self._error: DrayError | None = None
        self._statuses: dict[str, ReplicaStatus] = {}
        self._patience = StoreOutage(self._logger)
        self._spool_watch = SpoolWatch(job.job_id, self._logger)
        self._meter = Meter()
        self._last_line = self._last_renewal = self._last_pace = time.monotonic()
        self._shares = ErrorShare()
        self._idle_at = 0.0
        self._idle_line = 0.0
        self._idle_told: str | None = None
        run = contextvars.copy_context().run  # Prefect knows by it which run an event belongs to
        self._thread = threading.Thread(target=run, args=(self._run,), name="dray-monitor", daemon=True)
        self.stopping = False
        self.bound: str | None = None  # why there are no more shard tasks, where that leaves replicas idle

    @property
    def ready(self) -> int:
        """Replicas that can take work."""
        return self._pool.ready()

    @property
    def store_away(self) -> bool:
        """Whether the store does not answer, or takes no writes, just now."""
        return self._patience.away

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=30)

    def check(self) -> None:
        """Raise what made the job impossible to go on with."""
        if self._error is not None:
            raise self._error

    def statuses(self) -> dict[str, ReplicaStatus]:
        """The last look at each replica."""
        return dict(self._statuses)

    def _run(self) -> None:
        patience = self._patience
        with ExitStack() as held:
            store: Store | None = None
            while not self._over.wait(LOOK_EVERY):
                try:
                    self._noticing.look()  # obeyed in time, store or no store
                    self._follow()
                    store = store or held.enter_context(reopen(self._job, patience=SHORT_PATIENCE))
                    self._look(store)
                    patience.back()
                except StoreError as error:
                    if not self._bears(patience, error):
                        return
                except DrayError as error:
                    self._fail(error)
                    return
                except Exception as error:  # noqa: BLE001  thread edge: a job must not go on unwatched
                    self._fail(JobFailedError(f"watching the job failed: {type(error).__name__}"))
                    return
            with suppress(DrayError):  # last words; the driver's next use of the store reports it
                self._follow()
                store = store or held.enter_context(reopen(self._job, patience=SHORT_PATIENCE))
                self._say(self._pulse(store.progress(self._job.job_id)), last=True)

    def _bears(self, patience: StoreOutage, error: StoreError) -> bool:
        """Whether to wait on for a store that is away: nodes and replicas are looked after meanwhile."""
        try:
            patience.bear(error)
        except DrayError as end:
            self._fail(end)
            return False
        return True

    def _fail(self, error: DrayError) -> None:
        self._error = error
        self.stopping = True

    def _follow(self) -> None:
        for status in follow(self._logger, self._pool, self._ledger):
            self._statuses[status.name] = status
        for lost in self._ledger.take_lost():
            tell_of_node(self._job.job_id, lost.node, "lost", {"cause": lost.cause, "replica": lost.replica})

    def _look(self, store: Store) -> None:
        now = time.monotonic()
        store.now()  # the first query to a store that was away, before anything is counted on
        lease = self._job.lease
        if now - self._last_renewal > lease.ttl / 4:
            store.renew_job(lease)
            self._last_renewal = now
        orders = orders_of(store, self._job)
        if not self.stopping and orders.stop:
            asked = "cancel requested" if orders.cancelled else "expired" if orders.expired else "put to rest"
            self._logger.info("%s: keeping what is committed", asked)
            self.stopping = True
        self._noticing.record()
        self._look_for_idle(store)
        self._pool.settle()
        self._spool_watch.look(store)
        pulse = self._pulse(store.progress(self._job.job_id))
        self._keep_pace(store, pulse)
        self._say(pulse)

    def _look_for_idle(self, store: Store) -> None:
        """Say which replicas are ready and have no work, and why."""
        now = time.monotonic()
        idle = self._pool.idle(_IDLE_SECONDS)
        if not idle or now < self._idle_at:
            return
        self._idle_at = now + _IDLE_SECONDS
        shards, no_place = store.shards(self._job.job_id), self._pool.no_place_for_tasks()
        reason = why_idle(shards, lanes=self._pool.lanes, bound=self.bound, no_place=no_place)
        self._pool.note_idle(_IDLE_SECONDS, reason and f"has no work: {reason}")
        if reason is not None and (reason != self._idle_told or now - self._idle_line > _IDLE_EVERY):
            self._idle_told, self._idle_line = reason, now
            self._logger.warning("%d of %d replicas have no work: %s", idle, self._pool.lanes, reason)

    def _tell_of_errors(self, pulse: Pulse) -> None:
        reached = self._shares.reached(finished=pulse.finished, failed=pulse.failed)
        if reached is not None:
            rows = {"failed": pulse.failed, "finished": pulse.finished, "total": pulse.total}
            share = round(pulse.failed / pulse.finished, 4)
            tell_of_job(self._job.job_id, "error-share", {"reached": reached, "share": share, **rows})

    def _pulse(self, progress: Progress) -> Pulse:
        counts = progress.counts
        return self._meter.pulse(
            time.monotonic(),
            finished=counts.done + counts.failed,
            failed=counts.failed,
            total=counts.total,
            tokens=progress.prompt_tokens + progress.completion_tokens,
        )

    def _keep_pace(self, store: Store, pulse: Pulse) -> None:
        """The rates into the store, where other processes read them (``dray status``)."""
        now = time.monotonic()
        if pulse.rows_per_second is not None and now - self._last_pace > PACE_EVERY:
            self._last_pace = now
            store.merge_job_info(self._job.lease, pace_of(pulse, at=store.now()))

    def _say(self, pulse: Pulse, *, last: bool = False) -> None:
        current_job.tell(pulse)
        self._tell_of_errors(pulse)
        clock = time.monotonic()
        if last or clock - self._last_line > LINE_EVERY:
            self._last_line = clock
            self._logger.info(pulse.line, extra={current_job.PULSE_RECORD: not last})
        if self._bulletin is not None:
            self._bulletin.show(100.0 * pulse.finished / pulse.total if pulse.total else 100.0)
