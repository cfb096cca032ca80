"""Ray clusters: start one, or join one."""

from __future__ import annotations

from dray.cluster.base import Cluster, ClusterInfo, ClusterSettings, Node
from dray.cluster.early import join_early, open_cluster, release_early, start_early
from dray.cluster.warm_head import cool_down, warm_up

__all__ = [
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
