"""Provision the Ray cluster beside ingest, and leave it whatever happens."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client

from dray.cluster import Cluster, ClusterInfo, ClusterSettings, open_cluster
from dray.cluster.forwarded_env import handed_down
from dray.cluster.member import ReplicaStart
from dray.engine import ReplicaStatus
from dray.errors import ConfigError
from dray.job.finalising import ReplicaAccount
from dray.job.heeding import Heed
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.report import Moments
from dray.store.urls import parse_url
from tasks.failing import note_failure
from tasks.stopping import disarm_ray


class RunningCluster:
    """A cluster that is being started or joined for one job."""

    def __init__(self, job: OpenJob, cluster: Cluster, timeline: Timeline) -> None:
        self._job = job
        self._cluster = cluster
        self._timeline = timeline

    def wait(self) -> ClusterInfo:
        """The cluster, once it can take work; CancelledError or ExpiredError where the job stops before."""
        with Heed(self._job) as heed:
            info = provision(self._cluster, heed)
        self._timeline.add("cluster", info.ready - info.seconds, info.ready)
        refuse_shared_sqlite(self._job.settings.store_url, info)
        return info

    def check(self) -> None:
        """Look once whether its head lives.

        Raises:
            JobPausedError: it has been gone for too long.
        """
        self._cluster.check()

    @staticmethod
    def accounts(starts: Sequence[ReplicaStart], statuses: dict[str, ReplicaStatus]) -> list[ReplicaAccount]:
        """What each replica did, from its start and the last look at it."""
        accounts = []
        for start in starts:
            status = statuses.get(start.name)
            stats = status.stats if status else None
            accounts.append(
                ReplicaAccount(
                    name=start.name,
                    node=status.node if status else "",
                    engine=start.info.engine,
                    version=start.info.version,
                    startup=dict(start.info.timeline),
                    moments=_moments(start, status),
                    busy_seconds=stats.busy_seconds if stats else 0.0,
                    rows=stats.finished if stats else 0,
                    tokens=stats.prompt_tokens + stats.completion_tokens if stats else 0,
                )
            )
        return accounts


def _moments(start: ReplicaStart, status: ReplicaStatus | None) -> Moments:
    """When the replica got how far; the first token of a replacement is not that of this start."""
    same = status is not None and status.began == start.process
    return Moments(
        asked=start.began,
        began=start.process,
        ready=start.ready,
        first_token=status.stats.first_token_at if status is not None and same else None,
        weights=start.info.weights,
    )


def refuse_shared_sqlite(store_url: str, info: ClusterInfo) -> None:
    """This machine and every stable one write to the store: SQLite takes one.

    Raises:
        ConfigError: the store is SQLite, and there are several.
    """
    writers = info.stable_hosts | {socket.gethostname()}
    if len(writers) > 1 and parse_url(store_url).get_backend_name() == "sqlite":
        raise ConfigError(
            "SQLite takes writers from one machine only; the flow and the stable nodes are "
            f"{len(writers)} machines ({', '.join(sorted(writers)[:5])}); "
            "use PostgreSQL (--store postgresql://...)"
        )


@task(
    name="provision-cluster",
    task_run_name="provision cluster",
    persist_result=False,
    cache_policy=NO_CACHE,
)
def provision(cluster: Cluster, heed: Heed) -> ClusterInfo:
    """Wait until the cluster can take work."""
    info = cluster.wait(heed.look)
    nodes = f"{len(info.nodes)} node{'s' if len(info.nodes) != 1 else ''}"
    get_run_logger().info("cluster: %s at %s, %.1f s", nodes, info.address, info.seconds)
    return info


@contextmanager
def cluster_of(job: OpenJob, settings: ClusterSettings, timeline: Timeline) -> Iterator[RunningCluster]:
    """A cluster for the block: started in the background at once, left at the end in any case.

    An error in the block also ends the job in the store, with its reason, before a cluster that may hang is
    left.
    """
    with _api_for_workers(settings) as variables:
        cluster = open_cluster(replace(settings, environment=variables))
        cluster.start()
        try:
            yield RunningCluster(job, cluster, timeline)
        except BaseException as error:
            disarm_ray()
            note_failure(job, error, release=True)
            raise
        finally:
            cluster.leave()


@contextmanager
def _api_for_workers(settings: ClusterSettings) -> Iterator[dict[str, str]]:
    """Variables by which Ray's workers find this run's API: each would start its own server otherwise."""
    with get_client(sync_client=True) as client:
        url = str(client.api_url).rstrip("/")
    if settings.address is not None:
        yield {**handed_down(), "PREFECT_API_URL": url}
        return
    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = url  # inherited by Ray's processes on this machine
    try:
        yield {}
    finally:
        if before is None:
            del os.environ["PREFECT_API_URL"]
