"""A local cluster that starts before its job asks for it: Ray takes seconds that other things can use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dray.cluster.base import Cluster, ClusterSettings
from dray.cluster.connect import RayCluster
from dray.errors import ConfigError

_early: RayCluster | None = None  # that no job has asked for so far


def start_early() -> None:
    """Begin to start a local cluster for this process's next job."""
    global _early
    _early = RayCluster(ClusterSettings())
    _early.launch()


def join_early(modules: Sequence[str]) -> None:
    """Join the cluster that was started early, if one was, in the background.

    One of its worker processes then imports ``modules``, while this process waits for other things. It takes
    the mark of the stable node for as long, so the first shard task comes after it, and to that process.
    """
    if _early is not None:
        _early.start_and_import(modules)


def release_early() -> None:
    """Stop a cluster that was started early and never asked for."""
    early = _taken()
    if early is not None:
        early.release()


def open_cluster(settings: ClusterSettings) -> Cluster:
    """A cluster as the settings say, not started yet; or the one that was started early, where it fits."""
    early = _taken() if settings == ClusterSettings() else None
    if early is not None:
        return early
    _refuse_second()
    return RayCluster(settings)


def _taken() -> RayCluster | None:
    global _early
    early, _early = _early, None
    return early


def _refuse_second() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise ConfigError(
            "this process is connected to Ray already, as below Prefect's RayTaskRunner: disconnect first "
            "(ray.shutdown()), or run the job in a process of its own (a deployment, or `dray run`)"
        )
