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
from dray.job.shard import ShardReceipt
from dray.store import Shard, ShardLease, ShardState, Store, open_store
from tasks.infer_shard import ShardWork, infer_shard
from tasks.monitor import Monitor
from tasks.ray_runner import HeardRayTaskRunner

SHARDS_PER_REPLICA = 2  # in flight: the tail of one overlaps the head of the next
MAX_CRASHES = 3  # of one shard's own worker process, which runs on a stable node
_END_SECONDS = 5.0


class ShardTasks:
    """The shard tasks of a job, a few at a time, while in the ``with`` block.

    The first of them are submitted at once: their processes start, and wait, beside the replicas'.
    """

    def __init__(
        self, job: OpenJob, shards: list[Shard], replicas: tuple[str, ...], cluster: ClusterInfo
    ) -> None:
        self._job = job
        self._waiting = deque(open_shards(shards))
        self._running: dict[Any, tuple[Any, Shard, str]] = {}
        self._load: Counter[str] = Counter(dict.fromkeys(replicas, 0))
        self._crashes: Counter[int] = Counter()
        self._runner = HeardRayTaskRunner()
        self._options = _stable(cluster)
        self._last_commit: float | None = None

    def __enter__(self) -> ShardTasks:
        self._runner.__enter__()
        with remote_options(**self._options):
            self._fill()
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self._end()
        finally:
            self._runner.__exit__(*exception)

    def run(self, monitor: Monitor) -> float | None:
        """Run all open shards; returns when each is done, or the job was cancelled.

        Returns:
            The time of the last commit, in seconds since 1970; None when there was none.

        Raises:
            JobFailedError: a shard failed for good.
        """
        while self._running or (self._waiting and not monitor.stopping):
            done, _ = ray.wait(list(self._running), num_returns=1, timeout=1.0)
            for reference in done:
                self._take(reference)
            monitor.check()
            if not monitor.stopping:
                with remote_options(**self._options):
                    self._fill()
        return self._last_commit

    def _fill(self) -> None:
        while self._waiting and len(self._running) < SHARDS_PER_REPLICA * len(self._load):
            shard = self._waiting.popleft()
            replica = min(self._load, key=lambda name: self._load[name])
            self._load[replica] += 1
            future = _submit(self._runner, self._job, shard, replica)
            self._running[future.wrapped_future] = (future, shard, replica)

    def _take(self, reference: Any) -> None:
        future, shard, replica = self._running.pop(reference)
        self._load[replica] -= 1
        future.wait()
        state: State = future.state
        if state.is_completed():
            self._note(state)
        elif state.is_crashed() and self._crashes[shard.number] < MAX_CRASHES:
            self._crashes[shard.number] += 1
            get_run_logger().warning("shard %d: its worker process died; running it again", shard.number)
            with open_store(self._job.settings.store_url, create=False) as store:
                _take_back(store, self._job, shard.number)
            self._waiting.append(shard)
        else:
            raise _failure(state, shard)

    def _note(self, state: State) -> None:
        receipt = state.result()
        if isinstance(receipt, ShardReceipt) and receipt.last_commit is not None:
            self._last_commit = max(self._last_commit or 0.0, receipt.last_commit)

    def _end(self) -> None:
        """Let tasks that are left end by themselves, because of what ended the others, or end them."""
        left = list(self._running)
        if left:
            _, left = ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)
        for reference in left:
            ray.cancel(reference)
        if left:
            ray.wait(left, num_returns=len(left), timeout=_END_SECONDS)


def _stable(cluster: ClusterInfo) -> dict[str, Any]:
    """Ray options of shard tasks. Ray's own retries are off: exactly one layer retries, Prefect's."""
    amount = 1 if cluster.stable_resource == STABLE_RESOURCE else 0.001
    return {"max_retries": 0, "num_cpus": 0, "resources": {cluster.stable_resource: amount}}


def _submit(runner: Any, job: OpenJob, shard: Shard, replica: str) -> Any:
    work = ShardWork(
        job=job.lease, shard=shard, store_url=job.settings.store_url, objects=job.settings.objects
    )
    parameters = {
        "number": shard.number,
        "replica": replica.rsplit("/", 1)[-1],
        "actor": replica,
        "work": work,
    }
    return runner.submit(infer_shard, parameters=parameters)


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
