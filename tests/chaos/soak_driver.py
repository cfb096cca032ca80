"""The driver of the soak: a process that stays warm, and forks one that runs a job for each line on stdin.

::

    python -m tests.chaos.soak_driver

A line is a JSON object with the fields of :class:`Order`. It answers ``{"pid": N}`` when the fork is there,
and ``{"ended": N, "code": C}`` when it is gone. Only the fork drives, so it alone is killed, and the next one
starts in a tenth of a second: everything is imported.

What runs is what the flow runs, with the flow's own classes for shards, monitor and notices. Instead of
Prefect's task engine, threads of this process call the plain function of a shard's task, and call it again
when it says that the attempt was interrupted.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import ray

import tasks.infer
import tasks.infer_shard
import tasks.interruptions
import tasks.monitor
import tasks.replicas
from dray import history
from dray.cluster import ClusterInfo, ClusterSettings, ReplicaPool, open_cluster
from dray.cluster.base import NAMESPACE
from dray.cluster.forwarded_env import handed_down
from dray.cluster.pool import SLOTS
from dray.cluster.ray_private import enable_token_auth
from dray.engine import EngineSpec
from dray.errors import InterruptedShardError
from dray.job import opening
from dray.job.finalising import ReplicaAccount, finalise_job
from dray.job.ingesting import engine_kind, ingest_job, open_shards
from dray.job.job_lease import job_lease_kept
from dray.job.ledger import JobLedger
from dray.job.opening import OpenJob, open_job
from dray.job.settings import JobSettings
from dray.job.timeline import Timeline
from dray.requests import RowDefaults, source_of
from dray.shard import lease
from dray.shard.pump import ShardReceipt
from dray.shard.work import Work
from dray.store import Shard, open_store
from tasks.cluster import RunningCluster
from tasks.infer import ShardTasks
from tasks.infer_shard import ShardWork, infer_shard
from tasks.interruptions import InterruptionHandler
from tasks.monitor import Monitor
from tasks.replicas import start_replicas

REPLICAS = 3
SHARD_PROCESSES = SLOTS * REPLICAS + 1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GONE_SECONDS = 10.0  # for Ray to end actors

logger = logging.getLogger("soak")


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job, and where what is said of it goes: ``log``, and ``report`` when it has ended well.

    ``notices`` says whether to listen for any: a process on each node, for each driver. ``leases`` are the
    seconds of the driver's lease and of a shard's, where a run cannot wait for the usual ones to end.
    ``apart`` has each shard task run in a process of its own, as Ray runs them for the flow.
    """

    job: str
    inputs: str
    output: str
    store: str = field(repr=False)
    history: str
    log: str
    report: str
    address: str
    token: str = field(repr=False)
    shard_rows: int
    engine: dict[str, Any]
    notices: bool
    leases: tuple[float, float] | None = None
    apart: bool = False

    def settings(self) -> JobSettings:
        """The job's."""
        return JobSettings(
            source=source_of(self.inputs),
            defaults=RowDefaults(),
            model="simulated",
            output=self.output,
            store_url=self.store,
            engine="simulated",
            engine_arguments=self.engine,
            replicas=REPLICAS,
            job_id=self.job,
            shard_rows=self.shard_rows,
        )


class Deaf(InterruptionHandler):
    """Has no watchers on the nodes."""

    def look(self) -> None:
        """Nobody says anything."""


class ThreadShards(ShardTasks):
    """Shard tasks as threads of this process, each of which may have a process do the work."""

    def __init__(
        self,
        job: OpenJob,
        shards: list[Shard],
        lanes: int,
        cluster: ClusterInfo,
        processes: ProcessPoolExecutor | None = None,
    ) -> None:
        super().__init__(job, shards, lanes, cluster)
        self._processes = processes
        self._threads = ThreadPoolExecutor((SLOTS + 1) * lanes, thread_name_prefix="shard")

    def __enter__(self) -> Self:
        self._fill()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fill(self) -> None:
        while (shard := self._next()) is not None:
            work = ShardWork(job=self._job.lease, shard=shard, store_url=self._job.settings.store_url)
            future = self._threads.submit(_run_shard, shard.number, work, self._processes)
            self._running[future] = (future, shard)

    def _collect(self) -> None:
        if not self._running:
            time.sleep(0.2)
            return
        done, _ = wait(self._running, timeout=1.0, return_when=FIRST_COMPLETED)
        for future in done:
            self._take(future)
            self._look_at = time.monotonic()

    def _take(self, reference: Future[Any]) -> None:
        del self._running[reference]
        receipt = reference.result()
        if isinstance(receipt, ShardReceipt) and receipt.last_commit is not None:
            self._last_commit = max(self._last_commit or 0.0, receipt.last_commit)


def _attempted(number: int, work: ShardWork) -> Any:
    return infer_shard.fn(number, work)


def _run_shard(number: int, work: ShardWork, processes: ProcessPoolExecutor | None) -> Any:
    while True:
        try:
            if processes is None:
                return infer_shard.fn(number, work)
            return processes.submit(_attempted, number, work).result()
        except InterruptedShardError as error:
            logger.info("shard %d: %s", number, error)


@contextmanager
def _processes_of(order: Order) -> Iterator[ProcessPoolExecutor | None]:
    """Processes for the shard tasks, forked while this one is not connected to Ray; they end with it."""
    if not order.apart:
        yield None
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(SHARD_PROCESSES, context, _join, (order,)) as processes:
        processes.submit(int).result()  # now all of them are there
        try:
            yield processes
        finally:
            processes.shutdown(wait=False, cancel_futures=True)


def _join(order: Order) -> None:
    """In a process for shard tasks: it dies with the driver, and finds replicas by name."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    enable_token_auth(order.token)
    ray.init(order.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)


def run_job(order: Order) -> dict[str, Any]:
    """The flow, without Prefect; what it came to, and the actors of the job that were left."""
    with _processes_of(order) as processes:
        return _run_job(order, processes)


def _run_job(order: Order, processes: ProcessPoolExecutor | None) -> dict[str, Any]:
    timeline = Timeline(time.time())
    job = open_job(order.settings())
    where = ClusterSettings(address=order.address, auth_token=order.token, environment=handed_down())
    cluster = open_cluster(where)
    cluster.start()
    accounts: list[ReplicaAccount] = []
    try:
        with job_lease_kept(job):
            shards = ingest_job(job, replicas=REPLICAS)
            if open_shards(shards):
                info = cluster.wait()
                accounts = _run_shards(job, shards, info, timeline, processes, notices=order.notices)
        cluster.wait()
        left = _actors_left(job.job_id)
    finally:
        cluster.leave()
    with job_lease_kept(job):
        result = finalise_job(job, timeline, accounts)
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
    return {"result": result.as_dict(), "actors": left}


def _run_shards(
    job: OpenJob,
    shards: list[Shard],
    info: ClusterInfo,
    timeline: Timeline,
    processes: ProcessPoolExecutor | None,
    *,
    notices: bool,
) -> list[ReplicaAccount]:
    with open_store(job.settings.store_url, create=False) as store:
        kind, model_name = engine_kind(store, job)
    arguments = dict(job.settings.engine_arguments)
    spec = EngineSpec(
        name="simulated", model="simulated", kind=kind, model_name=model_name, arguments=arguments
    )
    ledger = JobLedger(job)
    pool = ReplicaPool(f"{job.job_id}/{job.lease.epoch}", spec, info, REPLICAS, ledger)
    noticing = InterruptionHandler(job, pool) if notices else Deaf(job, pool)
    pool.start()
    try:
        with ThreadShards(job, shards, pool.lanes, info, processes) as running:
            start_replicas.fn(job, pool, ledger, noticing, timeline)
            with Monitor(job, pool, ledger, noticing) as monitor:
                running.run(monitor)
    finally:
        pool.stop()
    return RunningCluster.accounts(pool.starts(), monitor.statuses())


def _actors_left(job_id: str) -> list[str]:
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        named = ray.util.list_named_actors(all_namespaces=True)
        left = [one["name"] for one in named if one["name"].startswith(f"{job_id}/")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _shorten(driver: float, shard: float) -> None:
    """Leases that end within a run, renewed and given up in the same proportions as the usual ones."""
    opening.DRIVER_TTL = driver
    lease.RENEW_EVERY = lease.STOP_BEFORE_EXPIRY = shard / 6
    lease.LOOK_EVERY = min(lease.LOOK_EVERY, shard / 12)
    tasks.infer_shard.Work = partial(Work, ttl=shard)  # type: ignore[misc,assignment]


def _drive(order: Order) -> NoReturn:
    """In the fork: run the job, and end with this process."""
    code = 1
    try:
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        logging.basicConfig(format="%(asctime)s %(threadName)s %(message)s", level=logging.WARNING)
        logger.setLevel(logging.INFO)
        for module in (tasks.infer, tasks.infer_shard, tasks.monitor, tasks.interruptions, tasks.replicas):
            module.get_run_logger = lambda: logger  # there is no run of Prefect's
        os.environ[history.FOLDER_VARIABLE] = order.history
        history._folder = order.history  # read at import, before there was this job
        if order.leases is not None:
            _shorten(*order.leases)
        logger.info("driver %d: %s", os.getpid(), order)
        report = run_job(order)
        logger.info("done")
        part = Path(f"{order.report}.part")
        part.write_text(json.dumps(report))
        part.replace(order.report)
        code = 0
    except BaseException:  # noqa: BLE001  the end of a process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve until stdin ends."""
    os.environ["DRAY_NO_WAIT"] = "1"

    def answer(**values: Any) -> None:
        print(json.dumps(values), flush=True)

    answer(ready=os.getpid())
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pid = os.fork()
        if not pid:
            _drive(order)
        answer(pid=pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answer(ended=pid, code=code)


if __name__ == "__main__":
    main()
