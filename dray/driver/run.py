"""The driver of a job: one loop, in one thread, that looks, interrupts, judges, schedules and commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from dray.driver.capacity.market import MarketChoice
from dray.driver.capacity.purse import Purse
from dray.driver.capacity.scaling import Scaling
from dray.driver.events import Event, Observer, StopHeard, Told
from dray.driver.executor import Executor
from dray.driver.fleet import Fleet
from dray.driver.interruptions import InterruptionHandler
from dray.driver.intervals import Intervals, Schedule
from dray.driver.ledger import Ledger
from dray.driver.outage import SHORT_PATIENCE, SpoolWatch, StoreOutage
from dray.driver.replicas.losses import Losses, StoreBudgets
from dray.driver.replicas.news import PoolNews
from dray.driver.replicas.pool import ReplicaPool
from dray.driver.replicas.readiness import Readiness
from dray.driver.resting import put_to_rest
from dray.driver.shard_tasks.idling import IdleWatch, bound_tasks, feedable
from dray.driver.shard_tasks.reach import ReachWatch, needs_of
from dray.driver.shard_tasks.shards import ShardTasks
from dray.driver.shard_tasks.slots import mean_rows
from dray.driver.telling.observers import Observers
from dray.driver.telling.progress import JobProgress
from dray.driver.telling.wording import naming_the_model, plan_line, stop_line
from dray.engine.protocol import EngineSpec
from dray.errors import DrayError, JobFailedError, JobPausedError, raised_at
from dray.failures.foreign import Sign
from dray.failures.signs import facts_of
from dray.job.deadline import stop_signals
from dray.job.open_job import OpenJob, reopen
from dray.job.options.replica_range import ReplicaRange
from dray.store import Shard, Store

_LAST_SECONDS = 2.0  # for replicas to say what they did in all
_OTHER_HEAD = (
    "the head of the Ray cluster knows this job's driver no more: it was started anew, or has another token; "
    "committed rows are kept: `dray resume JOB` goes on, or the same command with another --cluster"
)


class Driver:
    """Runs the shards of a job on replicas of a cluster, until each is done or the job is to stop.

    ``fleet`` is where replicas run, ``executor`` where shard tasks do; ``observers`` hear what happens.
    ``replicas`` start, and there may be ``most`` while shards wait; other threads may add to ``events``.
    Use it as a context manager: at the end of the block no task and no replica is left.
    """

    def __init__(
        self,
        job: OpenJob,
        fleet: Fleet,
        executor: Executor,
        observers: Sequence[Observer],
        *,
        spec: EngineSpec,
        shards: Sequence[Shard],
        replicas: int,
        most: int | None = None,
        intervals: Intervals | None = None,
        events: deque[Event] | None = None,
        chooses_market: bool = False,
    ) -> None:
        self._job, self._fleet, self._executor = job, fleet, executor
        self._ledger = Ledger(job, fleet.info)
        self._observers = Observers([*observers, self._ledger])
        self._events: deque[Event] = deque() if events is None else events
        emit = self._events.append
        self._intervals = intervals or Intervals()
        prefix = f"{job.job_id}/{job.lease.epoch}"
        limits = feedable(job, ReplicaRange(replicas, max(most or replicas, replicas)), fleet.info, emit)
        self._pool = ReplicaPool(
            prefix, spec, fleet, replicas, self._intervals, most=limits.most, shard_rows=mean_rows(shards)
        )
        self._news = PoolNews(job, self._pool, emit)
        bound = bound_tasks(job, replicas, fleet.info, emit)
        every, watched = self._intervals.shards, self._pool.watched
        self._tasks = ShardTasks(
            job, executor, emit, lanes=replicas, bound=bound, look_every=every, watched=watched
        )
        self._interruptions = InterruptionHandler(job.job_id, fleet, self._pool, emit)
        self._losses = Losses(job.lease, emit)
        self._idle = IdleWatch(job.job_id, self._pool, fleet, bound, emit, self._intervals.idle)
        self._scaling = Scaling(
            job,
            self._pool,
            fleet,
            emit,
            self._resized,
            limits=limits,
            purse=Purse(job, self._ledger, emit),
            intervals=self._intervals,
            markets=MarketChoice() if chooses_market else None,
        )
        self._readiness = Readiness(self._pool, emit, lambda: self._scaling.awaits_spot)
        self._progress = JobProgress(job, emit)
        self._reach = ReachWatch(fleet, needs_of(job.settings, shards), emit)
        self._spool = SpoolWatch(job.job_id, emit)
        self._outage = StoreOutage(emit)
        self._schedule = Schedule(self._intervals)
        self._shards = shards
        self._store: Store | None = None
        self._weights_came = False
        self.stopping = False

    # -- the life of a run --------------------------------------------------------------------

    def __enter__(self) -> Driver:
        try:
            self._executor.start(self._fleet.info.stable_resource)
            self._tasks.prestart(self._shards)
            with self._outage.borne():
                self._replace(self._opened())  # the first replicas are asked for at once
        except BaseException as error:  # nothing is to stay of what has started
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:  # upon which tasks that run, or wait for a place, end by themselves
            put_to_rest(self._job, error)
        try:
            self._executor.close()
        finally:
            self._say_last()
            self._pool.stop()
            if self._store is not None:
                self._store.close()

    def until_ready(self) -> bool:
        """Go on until a replica can take work: others may come later. False when the job is to stop.

        Raises:
            EngineStartError, ConfigError: no replica can be started, or none in time.
            DrayError: as ``run``.
        """
        asked, unjoined = self._job.settings.replicas, len(self._fleet.info.unjoined)
        self.tell(Told(line=plan_line(self._pool, asked, self._scaling.plan, unjoined=unjoined)))
        while not self._pool.starts() and not self.stopping:
            with naming_the_model(self._job.settings.model):
                self._checked_step()
        return not self.stopping

    def run(self) -> None:
        """Go on until each shard is done, or the job is to stop and its tasks have ended.

        Raises:
            JobFailedError: a shard failed for good, or a budget is spent.
            JobPausedError: the store, the spool, the nodes of replicas or the stable ones need an operator.
            FencedError: another driver has the job.
        """
        while self._tasks.ending if self.stopping else self._tasks.left:
            self._checked_step()

    def tell(self, event: Event) -> None:
        """Have the observers told of it in the next step. Safe to call from any thread."""
        self._events.append(event)

    def note_weights(self) -> None:
        """More of the model has come to a node: replicas start later. Safe to call from any thread."""
        self._weights_came = True

    # -- one step -------------------------------------------------------------------------------

    def _step(self) -> None:
        """One look at everything. What needs the store waits while that is away; the rest goes on."""
        self._schedule.begin()
        self._look()
        self._interrupt()
        with self._outage.borne():
            store = self._opened()
            self._heed(store)
            self._judge(store)
            self._replace(store)
            self._start_tasks(store)
            self._commit(store)
        if self._outage.away:
            self._schedule.repeat()
            self._tasks.forget_lapsed()
            self._reach.doubt()
        self._tell_observers()

    def _checked_step(self) -> None:
        """A step. An error that is not dray's is named by its class alone: its message may quote anything."""
        try:
            self._step()
        except DrayError:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the job must not go on without its driver
            if facts_of(error).sign is Sign.REFUSED:  # by the cluster, which took this process when it joined
                raise JobPausedError(_OTHER_HEAD) from None
            raise JobFailedError(
                f"driving the job failed: {type(error).__name__}{raised_at(error)}"
            ) from None

    def _look(self) -> None:
        """See which shard tasks ended, and how the replicas are."""
        step = self._intervals.step
        self._tasks.take(self._executor.poll(step if self._outage.away else self._tasks.pause(step)))
        came, self._weights_came = self._weights_came, False
        if came:
            self._pool.wait_on()
        self._news.look()
        self._readiness.look(awaited=not (self.stopping or self._outage.away or came))

    def _interrupt(self) -> None:
        """Drain the nodes that are being taken back."""
        if self._schedule.due("notices"):
            self._interruptions.look()

    def _heed(self, store: Store) -> None:
        """Read whether the job was cancelled, has expired, or was put to rest."""
        if not self._schedule.due("stop_signals"):
            return
        signals = stop_signals(store, self._job)
        if signals.stop and not self.stopping:
            self.stopping = True
            self.tell(StopHeard(why=stop_line(signals)))

    def _judge(self, store: Store) -> None:
        """Decide what the replicas died of, and charge it. Shard tasks wait for that."""
        self._interruptions.record(store)  # first: a notice explains a loss
        if self._schedule.due("lost"):
            self._pool.ask_now(store.unjudged(self._job.job_id, self._pool.live()))
        self._losses.add(self._pool.take_losses())
        self._losses.judge(store)
        if self._losses.failure is not None:
            raise self._losses.failure

    def _replace(self, store: Store) -> None:
        """Start the replicas that are due, and tell shard tasks of all that changed."""
        self._pool.launch_due(StoreBudgets(store, self._job.job_id, self._losses))
        self._news.publish(store)

    def _start_tasks(self, store: Store) -> None:
        """Start the tasks of shards that have a place on a replica."""
        self._tasks.schedule(store, self._pool.ready(), start=not self.stopping)

    def _commit(self, store: Store) -> None:
        """Put into the store what people read there."""
        if self._schedule.due("lease"):  # the lease has a thread; this shows whether the store takes writes
            store.renew_job(self._job.lease)
        if self._pool.starts() and self._schedule.due("progress"):
            self._progress.look(store)
        if self._schedule.due("scale") and not self.stopping:
            self._scaling.look(store)
        if self._schedule.due("idle"):
            self._idle.look(store, self._tasks.without_connection)
        if self._schedule.due("reach"):
            self._reach.look()
        if self._schedule.due("spool"):
            self._spool.look(store)
        if self._schedule.due("account"):
            self._ledger.keep(store)

    def _tell_observers(self) -> None:
        """Tell the observers. None of them may end a job."""
        while self._events:
            event = self._events.popleft()
            self._observers.hear(event)

    def _resized(self, lanes: int) -> None:
        """The pool is to have so many replicas from now on."""
        bound = bound_tasks(self._job, lanes, self._fleet.info, self.tell)
        self._tasks.resize(lanes, bound)
        self._idle.rebind(bound)

    # -- smaller things -------------------------------------------------------------------------

    def _opened(self) -> Store:
        """The store: opened once, for all that this thread does there."""
        if self._store is None:
            self._store = reopen(self._job, patience=SHORT_PATIENCE)
        return self._store

    def _say_last(self) -> None:
        """Tell how far the job came. Errors of the store are left to the driver's next use of it."""
        with suppress(DrayError):
            self._news.say_last(_LAST_SECONDS)
            self._progress.look(self._opened(), final=True)
        self._tell_observers()
        with suppress(DrayError):
            self._ledger.keep(self._opened(), last=True)
