"""Fan the shards out: one Prefect task each, under RayTaskRunner, on stable nodes."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import ray
from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect_ray.context import remote_options

from dray.cluster import STABLE_RESOURCE, ClusterInfo
from dray.errors import DrayError, JobFailedError
from dray.job.ingesting import open_shards
from dray.job.opening import OpenJob
from dray.store import Shard, ShardLease, ShardState, Store, open_store
from tasks.infer_shard import ShardWork, infer_shard
from tasks.monitor import Monitor
from tasks.ray_runner import HeardRayTaskRunner

SHARDS_PER_REPLICA = 2  # in flight: the tail of one overlaps the head of the next
MAX_CRASHES = 3  # of one shard's own worker process, which runs on a stable node


def infer(
    job: OpenJob,
    shards: list[Shard],
    replicas: tuple[str, ...],
    max_num_seqs: int,
    cluster: ClusterInfo,
    monitor: Monitor,
) -> None:
    """Run all open shards; returns when each is done, or the job was cancelled.

    Raises:
        JobFailedError: a shard failed for good.
    """
    waiting = deque(open_shards(shards))
    running: dict[Any, tuple[Any, Shard, str]] = {}
    load: Counter[str] = Counter(dict.fromkeys(replicas, 0))
    crashes: Counter[int] = Counter()
    with HeardRayTaskRunner() as runner, remote_options(**_stable(cluster)):
        while (waiting and not monitor.stopping) or running:
            while waiting and not monitor.stopping and len(running) < SHARDS_PER_REPLICA * len(replicas):
                shard = waiting.popleft()
                replica = min(replicas, key=lambda name: load[name])
                load[replica] += 1
                future = _submit(runner, job, shard, replica, max_num_seqs)
                running[future.wrapped_future] = (future, shard, replica)
            done, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
            for reference in done:
                future, shard, replica = running.pop(reference)
                load[replica] -= 1
                if _ended(job, future, shard, crashes):
                    waiting.append(shard)
            monitor.check()


def warm_up(cluster: ClusterInfo, workers: int) -> None:
    """Let stable nodes start worker processes and import what shard tasks need, while engines start.

    Fire and forget: a shard task that finds no warm process starts a cold one.
    """

    def load() -> None:
        import tasks.infer_shard  # noqa: F401

    remote = ray.remote(load).options(**_stable(cluster))
    for _ in range(workers):
        remote.remote()


def _stable(cluster: ClusterInfo) -> dict[str, Any]:
    """Ray options of shard tasks. Ray's own retries are off: exactly one layer retries, Prefect's."""
    amount = 1 if cluster.stable_resource == STABLE_RESOURCE else 0.001
    return {"max_retries": 0, "num_cpus": 0, "resources": {cluster.stable_resource: amount}}


def _submit(runner: Any, job: OpenJob, shard: Shard, replica: str, max_num_seqs: int) -> Any:
    work = ShardWork(
        job=job.lease,
        shard=shard,
        max_num_seqs=max_num_seqs,
        store_url=job.settings.store_url,
        objects=job.settings.objects,
    )
    parameters = {
        "number": shard.number,
        "replica": replica.rsplit("/", 1)[-1],
        "actor": replica,
        "work": work,
    }
    return runner.submit(infer_shard, parameters=parameters)


def _ended(job: OpenJob, future: Any, shard: Shard, crashes: Counter[int]) -> bool:
    """Look at a shard task that ended; True when the shard has to be run again."""
    future.wait()
    state: State = future.state
    if state.is_completed():
        return False
    if state.is_crashed():
        crashes[shard.number] += 1
        if crashes[shard.number] <= MAX_CRASHES:
            get_run_logger().warning("shard %d: its worker process died; running it again", shard.number)
            with open_store(job.settings.store_url, create=False) as store:
                _take_back(store, job, shard.number)
            return True
    raise _failure(state, shard)


def _take_back(store: Store, job: OpenJob, number: int) -> None:
    """Free a shard whose holder is known to be dead, instead of waiting for its lease to lapse."""
    for shard in store.shards(job.job_id):
        if shard.number == number and shard.state is ShardState.LEASED and shard.owner is not None:
            lease = ShardLease(
                job_id=job.job_id,
                key=job.lease.key,
                number=number,
                epoch=shard.epoch,
                owner=shard.owner,
                ttl=0.0,
                until=shard.lease_until or 0.0,
            )
            store.release_shard(lease, cause="NODE_LOSS", detail="worker process died")


def _failure(state: State, shard: Shard) -> DrayError:
    try:
        state.result()
    except DrayError as error:
        return error
    except BaseException as error:  # noqa: BLE001  whatever it was, it failed the shard
        return JobFailedError(f"shard {shard.number} failed: {type(error).__name__}")
    return JobFailedError(f"shard {shard.number} ended as {state.name}")
