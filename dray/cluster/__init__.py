"""Ray clusters: start one, or join one, and the replicas on it."""

from __future__ import annotations

from dray.cluster.base import STABLE_RESOURCE, STABLE_SHARE, Cluster, ClusterInfo, ClusterSettings, Node
from dray.cluster.connect import open_cluster, release_early, start_early
from dray.cluster.pool import ReplicaPool

__all__ = [
    "STABLE_RESOURCE",
    "STABLE_SHARE",
    "Cluster",
    "ClusterInfo",
    "ClusterSettings",
    "Node",
    "ReplicaPool",
    "open_cluster",
    "release_early",
    "start_early",
]
