"""Start the replicas."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dray.cluster import ReplicaPool
from dray.cluster.pool import ReplicaStart
from dray.job.timeline import Timeline

START_TIMEOUT = 1800.0  # seconds; a large model from a slow disk


@task(name="start-replicas", task_run_name="start replicas", persist_result=False, cache_policy=NO_CACHE)
def start_replicas(pool: ReplicaPool, timeline: Timeline) -> list[ReplicaStart]:
    """Wait until every replica can take work, and say what its start took."""
    logger = get_run_logger()
    with timeline.phase("engine_start"):
        starts = pool.wait_ready(START_TIMEOUT)
    for start in starts:
        name = start.name.rsplit("/", 1)[-1]
        timeline.add("engine_start", start.began, start.ready, lane=name)
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in start.info.timeline.items())
        logger.info("%s ready after %.1f s (%s)", name, start.ready - start.began, parts)
    return starts
