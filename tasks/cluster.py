"""The Ray cluster of a run: it is left whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal

import tasks
from dray.cluster import Cluster, ClusterSettings, open_cluster
from dray.cluster.forwarded_env import handed_down
from dray.job.open_job import OpenJob
from tasks.failing import note_failure
from tasks.stopping import disarm_ray


@contextmanager
def cluster_of(job: OpenJob, settings: ClusterSettings) -> Iterator[Cluster]:
    """A cluster for the block, not started yet, and left at the end in any case.

    An error in the block also ends the job in the store, with its reason, before a cluster that may hang is
    left.
    """
    packages = () if settings.local else tuple(tasks.__path__)  # nodes may have the wheel, which has none
    with _api_for_workers(settings) as variables:
        cluster = open_cluster(replace(settings, environment=variables, packages=packages))
        try:
            yield cluster
        except BaseException as error:
            if isinstance(error, TerminationSignal):
                disarm_ray()
            note_failure(job, error)
            raise
        finally:
            cluster.leave()


@contextmanager
def _api_for_workers(settings: ClusterSettings) -> Iterator[dict[str, str]]:
    """Variables by which Ray's workers find this run's API: each would start its own server otherwise."""
    with get_client(sync_client=True) as client:
        url = str(client.api_url).rstrip("/")
    if not settings.local:
        yield {**handed_down(), "PREFECT_API_URL": url}
        return
    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = url  # inherited by Ray's processes on this machine
    try:
        yield {}
    finally:
        if before is None:
            del os.environ["PREFECT_API_URL"]
