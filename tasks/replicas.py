"""Start the replicas, and follow them: what they say goes into the run's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dray.cluster import ReplicaPool
from dray.cluster.asking import ReplicaResources
from dray.cluster.member import ReplicaStart
from dray.cluster.pool import START_SECONDS
from dray.engine import ReplicaStatus
from dray.errors import EngineStartError, StoreError
from dray.job.deadline import orders_of
from dray.job.ledger import JobLedger
from dray.job.opening import OpenJob, reopen
from dray.job.timeline import Timeline
from dray.places import lane_of
from dray.report.wording import plural
from tasks.interruptions import InterruptionHandler
from tasks.patience import SHORT_PATIENCE, Logger, StoreOutage

_LOOK_EVERY = 0.1  # seconds
_ASK_EVERY = 1.0
_OF_WEIGHTS = frozenset(("wait", "load"))  # parts that say something where weights had to be fetched


@task(name="start-replicas", task_run_name="start replicas", persist_result=False, cache_policy=NO_CACHE)
def start_replicas(
    job: OpenJob, pool: ReplicaPool, ledger: JobLedger, noticing: InterruptionHandler, timeline: Timeline
) -> bool:
    """Wait until a replica can take work: others may come later. False when the job was cancelled meanwhile.

    Raises:
        EngineStartError, ConfigError: none can be started, or not in time.
        JobFailedError: a budget is spent.
        JobPausedError: the store stays away.
        FencedError: another driver has the job.
    """
    logger = get_run_logger()
    patience, asked = StoreOutage(logger), 0.0
    deadline = time.monotonic() + START_SECONDS
    logger.info("%s", _plan(job, pool))
    with timeline.phase("engine_start"):
        while True:
            follow(logger, pool, ledger)
            due = time.monotonic() > asked + _ASK_EVERY
            if due:
                noticing.look()
                asked = time.monotonic()
            try:
                pool.settle()
                if pool.starts():
                    return True
                if due and _is_stopped(job, noticing):
                    logger.info("cancel requested: the replicas are not waited for")
                    return False
                patience.back()
            except StoreError as error:
                patience.bear(error)
            if time.monotonic() > deadline:
                waiting = pool.waiting()
                told = f"none of {pool.lanes} replicas is ready after {START_SECONDS:.0f} s"
                raise EngineStartError(f"{told}: {waiting}" if waiting else told)
            time.sleep(_LOOK_EVERY)


def _plan(job: OpenJob, pool: ReplicaPool) -> str:
    """How many replicas, with what, and by whose word."""
    told = f"starting {plural(pool.lanes, 'replica')}"
    if pool.ask != ReplicaResources(cpus=0):
        told += f", each with {pool.ask}"
    if job.settings.replicas is not None:
        return told
    return (
        told + (", for the GPUs that are there now" if pool.ask.gpus else "") + "; --replicas asks for more"
    )


def _is_stopped(job: OpenJob, noticing: InterruptionHandler) -> bool:
    """Whether the job is to stop and needs no replicas. Records the noticed interruptions first."""
    noticing.record()
    with reopen(job, patience=SHORT_PATIENCE) as store:
        return orders_of(store, job).stop


def follow(logger: Logger, pool: ReplicaPool, ledger: JobLedger) -> list[ReplicaStatus]:
    """Look at the replicas, and say what is new: who is ready, what they logged, who was lost.

    Raises:
        EngineStartError, ConfigError: none has started, and none will.
        JobFailedError: a budget is spent.
    """
    statuses = pool.look()
    for start in pool.take_ready():
        logger.info("%s", ready_line(start))
    for status in statuses:
        for level, name, message in status.log:
            if level >= logging.INFO:
                logger.log(level, "[%s] %s: %s", lane_of(status.name), name, message)
    waiting = pool.take_told()
    if waiting is not None:
        logger.warning("%s", waiting)
    for told in ledger.take_told():
        logger.warning("%s", told)
    if ledger.failure is not None:
        raise ledger.failure
    return statuses


def note_starts(starts: Sequence[ReplicaStart], timeline: Timeline) -> None:
    """What the starts took, when all is over."""
    for start in starts:
        timeline.add("engine_start", start.began, start.ready, lane=_lane(start))
    firsts = {_lane(start): start for start in reversed(starts)}
    _note_weights(list(firsts.values()), timeline)


def ready_line(start: ReplicaStart) -> str:
    """What a start took, and the parts of it that took a tenth of a second."""
    parts = {
        part: f"{seconds:.1f} s"
        for part, seconds in start.info.timeline.items()
        if start.info.weights is not None or part not in _OF_WEIGHTS
    }
    told = ", ".join(f"{part} {seconds}" for part, seconds in parts.items() if seconds != "0.0 s")
    return f"{_lane(start)} ready after {start.ready - start.began:.1f} s{f' ({told})' if told else ''}"


def _lane(start: ReplicaStart) -> str:
    return lane_of(start.name)


def _note_weights(starts: Sequence[ReplicaStart], timeline: Timeline) -> None:
    """The time in which weights were fetched: for each replica as far as it ran by then, and for the job."""
    spans = [(start, start.info.weights) for start in starts if start.info.weights is not None]
    for start, (began, ended) in spans:
        if ended > start.began:
            timeline.add("weights", max(began, start.began), ended, lane=_lane(start))
    own = [span for _, span in spans if span[0] >= timeline.started]  # others found it here already
    if own:
        timeline.add("weights", min(began for began, _ in own), max(ended for _, ended in own))
