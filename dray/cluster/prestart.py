"""A local cluster that starts before its job asks for it: Ray takes seconds that other things can use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dray.cluster.base import Cluster, ClusterSettings
from dray.cluster.connect import RayCluster
from dray.errors import ConfigError

_prestarted: RayCluster | None = None  # that no job has asked for so far


def prestart_cluster() -> None:
    """Begin to start a local cluster for this process's next job."""
    global _prestarted
    _prestarted = RayCluster(ClusterSettings())
    _prestarted.launch()


def join_prestarted(modules: Sequence[str]) -> None:
    """Join the cluster that was prestarted, if one was, in the background.

    One of its worker processes then imports ``modules``, while this process waits for other things. It takes
    the mark of the stable node for as long, so the first shard task comes after it, and to that process.
    """
    if _prestarted is not None:
        _prestarted.start_and_import(modules)


def release_prestarted() -> None:
    """Stop a cluster that was prestarted and never asked for."""
    prestarted = _taken()
    if prestarted is not None:
        prestarted.release()


def open_cluster(settings: ClusterSettings) -> Cluster:
    """A cluster as the settings say, not started yet; or the one that was prestarted, where it fits."""
    prestarted = _taken() if settings == ClusterSettings() else None
    if prestarted is not None:
        return prestarted
    _refuse_second()
    return RayCluster(settings)


def _taken() -> RayCluster | None:
    global _prestarted
    prestarted, _prestarted = _prestarted, None
    return prestarted


def _refuse_second() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise ConfigError(
            "this process is connected to Ray already, as below Prefect's RayTaskRunner: disconnect first "
            "(ray.shutdown()), or run the job in a process of its own (a deployment, or `dray run`)"
        )
