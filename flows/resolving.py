"""Prefect's blocks, as the values that requests name by ``block:NAME``."""

from __future__ import annotations

from typing import Any

from blocks.ec2_ray_cluster import EC2RayCluster
from blocks.kuberay_cluster import KubeRayCluster
from blocks.model_source import ModelSource
from blocks.object_store import ObjectStoreCredentials
from blocks.ray_cluster import ExistingRayCluster, LocalRayCluster
from blocks.result_store import ResultStore
from dray.cluster import ClusterSettings
from dray.errors import ConfigError
from dray.job.resolving import ModelPlace
from dray.storage import ObjectStoreOptions

_CLUSTERS: dict[str, Any] = {
    str(one._block_type_slug): one
    for one in (LocalRayCluster, ExistingRayCluster, EC2RayCluster, KubeRayCluster)
}


class PrefectBlocks:
    """The blocks in Prefect. Each call raises ConfigError where there is none of the name."""

    def store_url(self, name: str) -> str:
        """A result store's URL, with its password."""
        url: str = _load(ResultStore, name).settings()
        return url

    def model(self, name: str) -> ModelPlace:
        """A model."""
        place: ModelPlace = _load(ModelSource, name).settings()
        return place

    def objects(self, name: str) -> ObjectStoreOptions:
        """Credentials of an object store."""
        options: ObjectStoreOptions = _load(ObjectStoreCredentials, name).settings()
        return options

    def cluster(self, name: str) -> ClusterSettings:
        """A cluster: ``NAME`` of our own, or ``SLUG/NAME`` of another type of block."""
        kind, _, document = name.rpartition("/")
        block_type = _CLUSTERS.get(kind or str(LocalRayCluster._block_type_slug))
        if block_type is None:
            raise ConfigError(
                f"no block of the type {kind!r} is a cluster; those are {', '.join(sorted(_CLUSTERS))}"
            )
        settings: ClusterSettings = _load(block_type, document).settings()
        return settings


def _load(block_type: Any, name: str) -> Any:
    try:
        return block_type.load(name)
    except ValueError as error:
        slug = block_type._block_type_slug
        raise ConfigError(f"no {slug} block named {name!r} in Prefect; see `prefect block ls`") from error
