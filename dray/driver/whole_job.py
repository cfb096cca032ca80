"""A whole job, from its input to its last file: without Prefect, or with the flow's tasks as its steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dray.cluster.asking import ask_of, unused_gpus
from dray.cluster.base import Cluster, ClusterInfo, ClusterSettings
from dray.cluster.placing import default_replicas, expected_replicas
from dray.cluster.ray_fleet import RayFleet
from dray.driver.capacity.renting import chooses_market, rented_for
from dray.driver.capacity.spent import refuse_spent
from dray.driver.events import Event, Observer, Told, Warned
from dray.driver.executor import Executor
from dray.driver.fleet import Fleet
from dray.driver.intervals import Intervals
from dray.driver.resting import put_to_rest
from dray.driver.run import Driver
from dray.driver.telling.metrics import metrics_of
from dray.driver.telling.observers import Observers, ReportObserver
from dray.driver.telling.wording import cluster_line, opened_line
from dray.driver.weights_watch import AGENT_SECONDS, prefetched_weights, weights_on
from dray.engine.protocol import EngineSpec
from dray.engine.tuning import tuning_for
from dray.errors import CancelledError, ExpiredError, JobPausedError, StoreError
from dray.job.beginning.opening import open_job
from dray.job.beginning.weighing import Weighing
from dray.job.deadline import stop_signals
from dray.job.ending.expiring import expire
from dray.job.ending.finalising import finalise_job
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.result import JobResult
from dray.job.ending.timeline import Timeline
from dray.job.heeding import Heed
from dray.job.job_lease import job_lease_kept
from dray.job.open_job import OpenJob, reopen
from dray.job.options.settings import JobSettings
from dray.job.options.shared_store import refuse_rented_sqlite, refuse_shared_sqlite
from dray.job.rows.following import answer_followers, followers_answered
from dray.job.rows.ingesting import engine_kind, ingest_told, open_shards
from dray.job.rows.sharing import told_of
from dray.store import JobState, Shard
from dray.weights import LocalModel


def run_job(settings: JobSettings, parts: Parts, *, resume: bool = False) -> JobResult:
    """Answer every row of a job and write its files; finished rows of earlier runs are kept.

    Raises:
        DrayError: the job cannot be opened, or ended early; its reason is in the store then.
    """
    job = open_job(settings, started=time.time(), resume=resume)
    timeline = Timeline(job.started, job.clock)
    parts.tell(opened_line(job))
    try:
        with job_lease_kept(job):
            with prefetched_weights(job, parts.where) as prefetched:
                accounts = Run(job, timeline, parts, prefetched).answer_rows()
            state = end_state(job)
            if state is JobState.PAUSED:
                raise JobPausedError(paused_reason(job))
            result = finalise_job(job, timeline, accounts, state=state)
    except Exception as error:
        put_to_rest(job, error, release=True)
        raise
    with suppress(StoreError), reopen(job) as store:  # the job is done anyhow: its lease lapses
        store.release_job(job.lease)
    return result


def provision(cluster: Cluster, heed: Heed) -> ClusterInfo:
    """Wait until the cluster can take work."""
    return cluster.wait(heed.look)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a run that people see: plain calls here, Prefect's tasks in the flow."""

    ingest: Callable[[OpenJob, Timeline, int, Callable[[str], None]], list[Shard]] = ingest_told
    provision: Callable[[Cluster, Heed], ClusterInfo] = provision
    start_replicas: Callable[[Driver], bool] = Driver.until_ready


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of: the cluster and its nodes, where shard tasks run, and who hears of it.

    ``where`` is the cluster's settings, which say whether it is one of our own on this machine.
    """

    where: ClusterSettings
    cluster: Cluster
    executor_of: Callable[[ClusterInfo], Executor]
    observers: Sequence[Observer] = ()
    fleet_of: Callable[[ClusterInfo], Fleet] = RayFleet
    steps: Steps = field(default_factory=Steps)
    intervals: Intervals = field(default_factory=Intervals)

    def tell(self, line: str) -> None:
        """Have the observers told, where no driver runs that would do it."""
        Observers(self.observers).hear(Told(line=line))


@dataclass(frozen=True)
class Run:
    """One run of an open job, from its input to the last row that it can answer.

    ``prefetched`` is the job's model, where this process fetches it already.
    """

    job: OpenJob
    timeline: Timeline
    parts: Parts
    prefetched: LocalModel | None = None

    def answer_rows(self) -> list[ReplicaAccount]:
        """Read the input and run its rows, beside the start of the cluster, which is left in any case.

        Returns:
            What each replica did. Rows are left where the job is to stop: :func:`end_state` says what it is.

        Raises:
            JobBlockedError: its budget was spent in earlier runs.
            ConfigError: the store is SQLite, and the cluster of several machines.
        """
        parts, job = self.parts, self.job
        try:
            if self._needs_cluster():
                refuse_rented_sqlite(job.settings.store_url, parts.where)
                parts.cluster.start()
            with Weighing(job) as weighing:
                shards = parts.steps.ingest(job, self.timeline, self._expected(), parts.tell)
                self._tell_shared()
                if not self._weighed(weighing) or not open_shards(shards) or _is_stopped(job):
                    return []
                info = self._joined()
                return [] if info is None else self._drive(shards, parts.fleet_of(info))
        finally:
            parts.cluster.leave()

    def _needs_cluster(self) -> bool:
        """Whether earlier runs have left open shards, as the store knows: machines cost from their start."""
        if not self.job.resumed:
            return True
        with reopen(self.job) as store:
            if not open_shards(store.shards(self.job.job_id)) or stop_signals(store, self.job).stop:
                return False
            refuse_spent(store, self.job)
        return True

    def _tell_shared(self) -> None:
        with reopen(self.job) as store:
            for line in told_of(self.job, store.get_job(self.job.job_id)):
                self.parts.tell(line)

    def _weighed(self, weighing: Weighing) -> bool:
        """Hold the job to the weights that it began with; false where it stops before they are read."""
        try:
            with Heed(self.job) as heed:
                weighing.check(heed.look)
        except (CancelledError, ExpiredError):  # the store says what becomes of the job
            return False
        return True

    def _expected(self) -> int:
        """How many replicas there may be: shards are cut for so many before the cluster is joined."""
        settings = self.job.settings
        return (
            settings.most_replicas
            or settings.replicas
            or expected_replicas(
                settings.engine, settings.engine_arguments, settings.replica_gpus, self.parts.where
            )
        )

    def _joined(self) -> ClusterInfo | None:
        """The cluster, once it can take work; None where the job stops before."""
        try:
            with Heed(self.job) as heed:
                info = self.parts.steps.provision(self.parts.cluster, heed)
        except (CancelledError, ExpiredError):  # the store says what becomes of the job
            return None
        self.parts.tell(cluster_line(info))
        ready = info.ready + self.timeline.clock.ahead()
        self.timeline.add("cluster", ready - info.seconds, ready)
        refuse_shared_sqlite(self.job.settings.store_url, info.stable_hosts)
        return info

    def _drive(self, shards: Sequence[Shard], fleet: Fleet) -> list[ReplicaAccount]:
        spec, parts, settings = engine_spec(self.job), self.parts, self.job.settings
        replicas = settings.replicas or default_replicas(spec, fleet.info)
        most = settings.most_replicas or replicas
        spec = self._tuned(spec, shards, most)
        report = ReportObserver(self.timeline)
        ask = ask_of(spec, fleet.info, most)
        # There, and renting may have more to say before there is a driver.
        mailbox: deque[Event] = deque(Warned(line=one) for one in unused_gpus(spec, fleet.info))
        with rented_for(parts.cluster, fleet, ask, replicas, mailbox.append, settings) as renting:
            driver = Driver(
                self.job,
                fleet,
                parts.executor_of(fleet.info),
                [*parts.observers, report, *renting, *metrics_of(self.job.job_id, fleet.info)],
                spec=spec,
                shards=shards,
                replicas=replicas,
                most=most,
                intervals=parts.intervals,
                events=mailbox,
                chooses_market=chooses_market(parts.cluster, settings.request.deadline),
            )
            weights = weights_on(self.job, self.prefetched, driver.tell, driver.note_weights)
            with weights, followers_answered(self.job), driver:
                with self.timeline.phase("engine_start"):
                    ready = parts.steps.start_replicas(driver)
                if ready:
                    driver.run()
        return report.accounts()

    def _tuned(self, spec: EngineSpec, shards: Sequence[Shard], replicas: int) -> EngineSpec:
        """The engine with what its replicas may find out, where the user asked for that."""
        settings = self.job.settings
        if not settings.request.engine.auto:
            return spec
        rows = sum(shard.rows for shard in open_shards(shards))
        tuning = tuning_for(settings.engine_arguments, rows=rows, replicas=replicas)
        if tuning is None:
            self.parts.tell(
                f"--auto: {rows:,} rows are too few to compare settings on; engines run as started"
            )
        return replace(spec, tuning=tuning)


def engine_spec(job: OpenJob) -> EngineSpec:
    """What the job's engines are, as its settings and its rows say."""
    with reopen(job) as store:
        kind, model_name = engine_kind(store, job)
    spec = job.settings.engine_spec(kind, model_name, weights=job.weights, weights_patience=AGENT_SECONDS)
    return replace(spec, prompt_day=job.prompt_day)


def end_state(job: OpenJob) -> JobState:
    """What the job is after its run. Rows of one whose time is over get their error rows first.

    Returns:
        COMPLETED, CANCELLED, EXPIRED, or PAUSED where it was put to rest meanwhile.
    """
    with reopen(job) as store:
        if store.get_job(job.job_id).state is not JobState.PAUSED:
            answer_followers(store, job)
        if store.get_job(job.job_id).state is JobState.EXPIRED:
            return JobState.EXPIRED  # in an earlier run, and every row has its outcome since
        if not store.counts(job.job_id).pending:
            return JobState.COMPLETED
        if store.get_job(job.job_id).state is JobState.PAUSED:
            return JobState.PAUSED
        signals = stop_signals(store, job)
        if signals.cancelled:
            return JobState.CANCELLED
        if signals.expired:
            expire(store, job)
            return JobState.EXPIRED
    return JobState.COMPLETED


def paused_reason(job: OpenJob) -> str:
    """Why a job was put to rest, as the store has it."""
    with reopen(job) as store:
        reason = store.get_job(job.job_id).reason or "put to rest"
    return f"{reason}; `{job.command('resume')}` goes on"


def _is_stopped(job: OpenJob) -> bool:
    """Whether the job is to stop; its driver then starts no replicas."""
    with reopen(job) as store:
        return stop_signals(store, job).stop
