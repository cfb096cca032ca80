"""The driver of the soak: a process that stays warm, and forks one that runs a job for each line on stdin.

::

    python -m tests.chaos.soak_driver

A line is a JSON object with the fields of :class:`Order`. It answers ``{"pid": N}`` when the fork is there,
and ``{"ended": N, "code": C}`` when it is gone. Only the fork drives, so it alone is killed, and the next one
starts in a tenth of a second: everything is imported.

What runs is the driver that the flow runs, on Ray, with shard tasks as threads of this process, each of which
may have a process do the work.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from dray import history
from dray.cluster import Cluster, ClusterInfo, ClusterSettings, Node, open_cluster
from dray.cluster.base import NAMESPACE
from dray.cluster.forwarded_env import handed_down
from dray.cluster.ray_fleet import RayFleet
from dray.cluster.ray_private import enable_token_auth
from dray.driver import whole_job
from dray.driver.shard_tasks.slots import MOST_SLOTS
from dray.driver.telling.observers import LogObserver
from dray.driver.whole_job import Parts
from dray.errors import DrayError
from dray.job.beginning import opening
from dray.job.options.settings import JobSettings
from dray.notices import Notice
from dray.requests.sources import RowDefaults, source_of
from dray.shard import lease
from dray.shard.task import RayReplicas, TaskResult, run_task
from dray.shard.work import ShardWork
from tests.support.forking import fork
from tests.support.thread_executor import ThreadExecutor

REPLICAS = 3
SHARD_PROCESSES = (MOST_SLOTS + 1) * REPLICAS + 1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GONE_SECONDS = 10.0  # for Ray to end actors

logger = logging.getLogger("soak")


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job, and where what is said of it goes: ``log``, and ``report`` when it has ended well.

    ``notices`` says whether to listen for any: a process on each node, for each driver. ``leases`` are the
    seconds of the driver's lease and of a shard's, where a run cannot wait for the usual ones to end.
    ``apart`` has each shard task run in a process of its own, as Ray runs them for the flow. ``model`` is a
    folder, where the engine is vLLM.
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
    model: str = "simulated"
    leases: tuple[float, float] | None = None
    apart: bool = False

    def settings(self) -> JobSettings:
        """The job's."""
        return JobSettings(
            source=source_of(self.inputs),
            defaults=RowDefaults(),
            model=self.model,
            output=self.output,
            store_url=self.store,
            engine="simulated" if self.model == "simulated" else "vllm",
            engine_arguments=self.engine,
            replicas=REPLICAS,
            job_id=self.job,
            shard_rows=self.shard_rows,
        )


class DeafFleet(RayFleet):
    """Has no watchers on the nodes."""

    def notices(self) -> list[tuple[Node, Notice]]:
        """There are none."""
        return []


def _task(work: ShardWork) -> TaskResult:
    return run_task(work, RayReplicas(), logger.info)


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
    """Run the job; what it came to, and the actors of the job that were left."""
    with _processes_of(order) as processes:
        where = ClusterSettings(address=order.address, auth_token=order.token, environment=handed_down())
        cluster = Left(open_cluster(where), order.job)
        parts = Parts(
            where=where,
            cluster=cluster,
            executor_of=lambda _: _executor(order, processes),
            observers=[LogObserver(logger)],
            fleet_of=RayFleet if order.notices else DeafFleet,
        )
        result = whole_job.run_job(order.settings(), parts)
    return {"result": result.as_dict(), "actors": cluster.actors}


def _executor(order: Order, processes: ProcessPoolExecutor | None) -> ThreadExecutor:
    def run(work: ShardWork) -> TaskResult:
        if order.leases is not None:
            work = replace(work, ttl=order.leases[1])
        return _task(work) if processes is None else processes.submit(_task, work).result()

    return ThreadExecutor(RayReplicas(), run=run)


@dataclass
class Left:
    """A cluster that is looked at before it is left: which actors of the job are still there?"""

    cluster: Cluster
    job: str
    actors: list[str] = field(default_factory=list)

    rented = None

    def start(self) -> None:
        """Join it."""
        self.cluster.start()

    def wait(self, look: Callable[[], None] = lambda: None) -> ClusterInfo:
        """Wait for it."""
        return self.cluster.wait(look)

    def check(self) -> None:
        """Look at its head."""
        self.cluster.check()

    def leave(self) -> None:
        """Look, and leave."""
        with suppress(DrayError):  # it was not joined
            self.cluster.wait()
            self.actors = _actors_left(self.job)
        self.cluster.leave()

    def release(self) -> None:
        """Leave it."""
        self.cluster.release()


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


def _drive(order: Order) -> None:
    """In the fork: run the job, and report."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(format="%(asctime)s %(threadName)s %(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
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


def main() -> None:
    """Serve until stdin ends."""
    os.environ["DRAY_NO_WAIT"] = "1"

    def answer(**values: Any) -> None:
        print(json.dumps(values), flush=True)

    answer(ready=os.getpid())
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pid = fork(partial(_drive, order))
        answer(pid=pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answer(ended=pid, code=code)


if __name__ == "__main__":
    main()
