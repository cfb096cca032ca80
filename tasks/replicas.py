"""Start the replicas."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dray.cluster import ReplicaPool
from dray.cluster.pool import ReplicaStart
from dray.errors import CancelledError
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.store import open_store

START_TIMEOUT = 1800.0  # seconds; a large model from a slow disk


@task(name="start-replicas", task_run_name="start replicas", persist_result=False, cache_policy=NO_CACHE)
def start_replicas(job: OpenJob, pool: ReplicaPool, timeline: Timeline) -> list[ReplicaStart]:
    """Wait until every replica can take work, and say what its start took.

    Returns:
        One entry for each replica; none when the job was cancelled meanwhile.
    """
    logger = get_run_logger()
    with timeline.phase("engine_start"), open_store(job.settings.store_url, create=False) as store:
        try:
            starts = pool.wait_ready(START_TIMEOUT, lambda: store.cancel_requested(job.job_id))
        except CancelledError:
            logger.info("cancel requested: the replicas are not waited for")
            return []
    for start in starts:
        name = start.name.rsplit("/", 1)[-1]
        timeline.add("engine_start", start.began, start.ready, lane=name)
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in start.info.timeline.items())
        logger.info("%s ready after %.1f s (%s)", name, start.ready - start.began, parts)
    _note_weights(starts, timeline)
    return starts


def _note_weights(starts: list[ReplicaStart], timeline: Timeline) -> None:
    """The time in which weights were fetched: for each replica as far as it ran by then, and for the job."""
    spans = [(start, start.info.weights) for start in starts if start.info.weights is not None]
    for start, (began, ended) in spans:
        if ended > start.began:
            timeline.add("weights", max(began, start.began), ended, lane=start.name.rsplit("/", 1)[-1])
    own = [span for _, span in spans if span[0] >= timeline.started]  # others found it here already
    if own:
        timeline.add("weights", min(began for began, _ in own), max(ended for _, ended in own))
