"""Start the replicas."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dray.cluster import ReplicaPool
from dray.cluster.member import ReplicaStart
from dray.cluster.pool import lane_of
from dray.errors import CancelledError
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.store import open_store
from tasks.noticing import Noticing

START_TIMEOUT = 1800.0  # seconds; a large model from a slow disk
_OF_WEIGHTS = frozenset(("wait", "load"))  # parts that say something where weights had to be fetched


@task(name="start-replicas", task_run_name="start replicas", persist_result=False, cache_policy=NO_CACHE)
def start_replicas(
    job: OpenJob, pool: ReplicaPool, noticing: Noticing, timeline: Timeline
) -> list[ReplicaStart]:
    """Wait until every replica can take work, and say what its start took.

    Returns:
        One entry for each replica; none when the job was cancelled meanwhile.
    """
    logger = get_run_logger()
    with timeline.phase("engine_start"), open_store(job.settings.store_url, create=False) as store:
        try:
            starts = pool.wait_ready(START_TIMEOUT, lambda: store.orders(job.job_id).stop, noticing.look)
        except CancelledError:
            logger.info("cancel requested: the replicas are not waited for")
            return []
    for start in starts:
        timeline.add("engine_start", start.began, start.ready, lane=_lane(start))
        logger.info("%s", ready_line(start))
    _note_weights(starts, timeline)
    return starts


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


def _note_weights(starts: list[ReplicaStart], timeline: Timeline) -> None:
    """The time in which weights were fetched: for each replica as far as it ran by then, and for the job."""
    spans = [(start, start.info.weights) for start in starts if start.info.weights is not None]
    for start, (began, ended) in spans:
        if ended > start.began:
            timeline.add("weights", max(began, start.began), ended, lane=_lane(start))
    own = [span for _, span in spans if span[0] >= timeline.started]  # others found it here already
    if own:
        timeline.add("weights", min(began for began, _ in own), max(ended for _, ended in own))
