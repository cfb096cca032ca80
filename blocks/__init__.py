"""Prefect blocks: saved configuration. Each turns itself into frozen dray settings, and does nothing else."""

from __future__ import annotations

from blocks.ec2_ray_cluster import EC2RayCluster
from blocks.kuberay_cluster import KubeRayCluster
from blocks.model_source import ModelSource
from blocks.object_store import ObjectStoreCredentials
from blocks.ray_cluster import ExistingRayCluster, LocalRayCluster
from blocks.result_store import ResultStore

__all__ = [
    "EC2RayCluster",
    "ExistingRayCluster",
    "KubeRayCluster",
    "LocalRayCluster",
    "ModelSource",
    "ObjectStoreCredentials",
    "ResultStore",
]
