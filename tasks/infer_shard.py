"""One shard, as one Prefect task on a stable node."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from dray.cluster.base import NAMESPACE
from dray.cluster.losses import NodeFacts, diagnose
from dray.engine.client import RayReplica, ReplicaClient
from dray.errors import (
    FencedError,
    InterruptedShardError,
    JobFailedError,
    JobPausedError,
    ReplicaLostError,
    StoreError,
)
from dray.failures.causes import Decision, Facts, decide
from dray.failures.effects import OnPrefect
from dray.failures.foreign import Sign
from dray.failures.signs import facts_of
from dray.job.owner import driver_name
from dray.places import lane_of
from dray.shard.attempt import attempt
from dray.shard.pump import ShardReceipt
from dray.shard.untaken import advised
from dray.shard.work import AttemptEnd, AttemptResult, Work
from dray.storage import ObjectStoreOptions
from dray.store import JobLease, Shard, Store, open_store
from tasks.retrying import RETRIES, Backoff, say_why, worth_retrying

# Between the attempts at a shard, which Prefect makes in one process.
_backoffs: defaultdict[tuple[str, int], Backoff] = defaultdict(Backoff)


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What a shard task needs."""

    job: JobLease
    shard: Shard
    store_url: str = field(repr=False)
    objects: ObjectStoreOptions | None = field(default=None, repr=False)


@task(
    name="infer-shard",
    task_run_name="shard {number}",
    retries=RETRIES,
    retry_delay_seconds=0,
    retry_condition_fn=worth_retrying,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def infer_shard(number: int, work: ShardWork) -> ShardReceipt | State[Any] | None:
    """Lease the shard and a place on a replica, feed it, commit what streams back, and end it.

    ``number`` is for the task run's name.
    """
    say_why()
    backoff = _backoffs[work.job.job_id, number]
    try:
        with open_store(work.store_url, create=False) as store:
            backoff.wait(lambda: store.orders(work.job.job_id).stop)
            ended = _attempt(store, work, backoff)
    except FencedError:
        return Completed(name="Superseded", message=f"shard {number} belongs to another attempt now")
    except StoreError as error:  # before there was a lease to decide about
        facts = Facts(
            lapsed=facts_of(error).sign is Sign.STORE_AWAY,
            store_seconds=backoff.away_seconds,
            tries=backoff.tries,
        )
        ended = AttemptResult(
            how=AttemptEnd.INTERRUPTED, decision=advised(decide(error, facts)), note=str(error)
        )
    return _as_state(number, ended, backoff)


def _attempt(store: Store, work: ShardWork, backoff: Backoff) -> AttemptResult:
    logger = get_run_logger()
    return attempt(
        Work(
            store=store,
            job=work.job,
            shard=work.shard,
            replicas=_RayReplicas(),
            owner=driver_name(),
            options=work.objects,
        ),
        tries=backoff.tries,
        unread_seconds=backoff.unread_seconds,
        untaken=backoff.untaken,
        on_answer=backoff.answered,
        on_start=lambda replica: logger.info("on %s", lane_of(replica)),
    )


def _as_state(number: int, ended: AttemptResult, backoff: Backoff) -> ShardReceipt | State[Any] | None:
    """What Prefect is to make of the end of an attempt."""
    logger = get_run_logger()
    if ended.how is not AttemptEnd.INTERRUPTED:
        backoff.answered()
    if ended.how is AttemptEnd.DONE:
        assert ended.receipt is not None
        logger.info("shard %d: %d rows in %.1f s", number, ended.receipt.rows, ended.receipt.seconds)
        return ended.receipt
    if ended.how is AttemptEnd.HELD:
        logger.info("shard %d is finished, or held by another attempt", number)
        return None
    if ended.how is AttemptEnd.STOPPED:
        return Completed(name="Stopped", message=f"shard {number}: the job goes no further")
    assert ended.decision is not None
    backoff.note(ended.decision, unread=ended.unread)
    return _after(ended.decision, f"{ended.decision.reason}; {ended.note}")


def _after(decision: Decision, reason: str) -> State[Any]:
    """Raise what has Prefect retry or fail the task, or end it under a name that says what happened."""
    on_prefect = decision.effect.prefect
    if on_prefect is OnPrefect.SPLIT:
        return Completed(name="Split", message=reason)
    if on_prefect is OnPrefect.SUPERSEDED:
        return Completed(name="Superseded", message=reason)
    if on_prefect is OnPrefect.PAUSE:
        raise JobPausedError(f"{reason}; when that is mended, `dray resume` goes on")
    if on_prefect is OnPrefect.FAIL:
        raise JobFailedError(reason)
    raise InterruptedShardError(reason)


class _RayReplicas:
    """Replicas as Ray actors, found by name."""

    def find(self, name: str) -> ReplicaClient:
        """The replica of this name."""
        found = RayReplica.find(name, NAMESPACE)
        if found is None:
            raise ReplicaLostError(f"replica {name} is gone")
        return found

    def facts(self, client: ReplicaClient, node: str | None) -> NodeFacts:
        """What became of it, and of its node."""
        assert isinstance(client, RayReplica)
        return diagnose(client.actor_id, node)
