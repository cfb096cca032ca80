"""Ray clusters: start one, or join one."""

from __future__ import annotations

from dray.cluster.base import STABLE_RESOURCE, STABLE_SHARE, Cluster, ClusterInfo, ClusterSettings, Node
from dray.cluster.connect import cool_down, join_early, open_cluster, release_early, start_early, warm_up

__all__ = [
    "STABLE_RESOURCE",
    "STABLE_SHARE",
    "Cluster",
    "ClusterInfo",
    "ClusterSettings",
    "Node",
    "cool_down",
    "join_early",
    "open_cluster",
    "release_early",
    "start_early",
    "warm_up",
]
