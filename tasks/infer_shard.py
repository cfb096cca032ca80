"""One shard, as one Prefect task on a stable node."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from dray.shard.backoff import Backoff
from dray.shard.task import Ended, RayReplicas, TaskResult, try_once
from dray.shard.work import ShardWork
from tasks.retrying import RETRIES, say_why, worth_retrying

# Between the attempts at a shard, which Prefect makes in one process.
_backoffs: defaultdict[tuple[str, int], Backoff] = defaultdict(Backoff)


@task(
    name="infer-shard",
    task_run_name="shard {number}",
    retries=RETRIES,
    retry_delay_seconds=0,
    retry_condition_fn=worth_retrying,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def infer_shard(number: int, work: ShardWork) -> TaskResult | State[Any]:
    """Lease the shard and a place on a replica, feed it, commit what streams back, and end it.

    Prefect tries again upon InterruptedShardError. ``number`` is for the task run's name.
    """
    say_why()
    logger = get_run_logger()
    result = try_once(work, RayReplicas(), _backoffs[work.job.job_id, number], logger.info)
    if result.how in (Ended.DONE, Ended.HELD):
        logger.info("%s", result.message)
        return result
    return Completed(name=result.how.capitalize(), message=result.message, data=result)
