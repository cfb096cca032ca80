"""One shard, as one Prefect task on a stable node."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from dray.cluster.pool import wait_for_replica
from dray.errors import CancelledError, FencedError
from dray.job.driver import driver_name
from dray.job.shard import ShardReceipt, run_shard
from dray.requests import ObjectStoreOptions
from dray.store import JobLease, Shard, open_store
from tasks.replicas import START_TIMEOUT
from tasks.retrying import DELAYS, RETRIES, worth_retrying

REPLICA_TIMEOUT = 2 * START_TIMEOUT  # seconds that a shard waits for its replica, or for a replacement


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What a shard task needs, besides a replica."""

    job: JobLease
    shard: Shard
    store_url: str = field(repr=False)
    objects: ObjectStoreOptions | None = field(default=None, repr=False)


@task(
    name="infer-shard",
    task_run_name="shard {number} on {replica}",
    retries=RETRIES,
    retry_delay_seconds=DELAYS,
    retry_condition_fn=worth_retrying,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def infer_shard(number: int, replica: str, actor: str, work: ShardWork) -> ShardReceipt | State | None:
    """Lease the shard, feed it to the replica, commit what streams back, and end it.

    ``number`` and ``replica`` are for the task run's name.
    """
    logger = get_run_logger()
    with open_store(work.store_url, create=False) as store:
        try:
            client, engine = wait_for_replica(
                actor, timeout=REPLICA_TIMEOUT, stopped=lambda: store.cancel_requested(work.job.job_id)
            )
            receipt = run_shard(
                store,
                work.job,
                work.shard,
                client,
                owner=driver_name(),
                max_num_seqs=engine.max_num_seqs,
                options=work.objects,
            )
        except FencedError:
            return Completed(name="Superseded", message=f"shard {number} belongs to another attempt now")
        except CancelledError:
            return Completed(name="Stopped", message=f"shard {number}: the job was cancelled")
    if receipt is None:
        logger.info("shard %d is finished, or held by another attempt", number)
    else:
        logger.info("shard %d: %d rows in %.1f s", number, receipt.rows, receipt.seconds)
    return receipt
