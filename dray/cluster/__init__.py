"""Ray clusters: start one, or join one."""

from __future__ import annotations

from dray.cluster.base import STABLE_RESOURCE, STABLE_SHARE, Cluster, ClusterInfo, ClusterSettings, Node
from dray.cluster.connect import open_cluster, release_early, start_early

__all__ = [
    "STABLE_RESOURCE",
    "STABLE_SHARE",
    "Cluster",
    "ClusterInfo",
    "ClusterSettings",
    "Node",
    "open_cluster",
    "release_early",
    "start_early",
]
