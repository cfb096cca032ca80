"""Ray clusters: start one, or join one."""

from __future__ import annotations

from dray.cluster.base import Cluster, ClusterInfo, ClusterSettings, Node
from dray.cluster.prestart import join_prestarted, open_cluster, prestart_cluster, release_prestarted
from dray.cluster.warm_head import cool_down, warm_up

__all__ = [
    "Cluster",
    "ClusterInfo",
    "ClusterSettings",
    "Node",
    "cool_down",
    "join_prestarted",
    "open_cluster",
    "release_prestarted",
    "prestart_cluster",
    "warm_up",
]
