"""Prefect's blocks, as the values that requests name by ``block:NAME``."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from blocks.ec2_ray_cluster import EC2RayCluster
from blocks.kuberay_cluster import KubeRayCluster
from blocks.model_source import ModelSource
from blocks.object_store import ObjectStoreCredentials
from blocks.ray_cluster import ExistingRayCluster, LocalRayCluster
from blocks.result_store import ResultStore
from dray.cluster import ClusterSettings
from dray.errors import ConfigError
from dray.job.options.resolving import ModelPlace
from dray.storage import ObjectStoreOptions

_CLUSTERS: dict[str, Any] = {
    str(one._block_type_slug): one
    for one in (LocalRayCluster, ExistingRayCluster, EC2RayCluster, KubeRayCluster)
}


class PrefectBlocks:
    """The blocks in Prefect, each by its ``NAME`` or, as ``prefect block ls`` shows it, ``SLUG/NAME``.

    Each call raises ConfigError where there is none of the name, or where what is saved cannot be used.
    """

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
        """A cluster: ``NAME`` alone is a local one."""
        kind, _, document = name.rpartition("/")
        block_type = _CLUSTERS.get(kind or str(LocalRayCluster._block_type_slug))
        if block_type is None:
            raise ConfigError(
                f"no block of the type {kind!r} is a cluster; those are {', '.join(sorted(_CLUSTERS))}"
            )
        others = "" if kind else f"; name a cluster of another kind as it stands there: block:SLUG/{name}"
        settings: ClusterSettings = _load(block_type, document, advice=others).settings()
        return settings


def _load(block_type: Any, name: str, advice: str = "") -> Any:
    slug = block_type._block_type_slug
    own = name.removeprefix(f"{slug}/")
    try:
        return block_type.load(own)
    except ValueError as error:
        raise ConfigError(
            f"no {slug} block named {own!r} in Prefect; see `prefect block ls`{advice}"
        ) from error
    except RuntimeError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        # Without its cause, which quotes what is saved, secrets too.
        raise ConfigError(f"the block {slug}/{own} cannot be used: {_problems(error.__cause__)}") from None


def _problems(error: ValidationError) -> str:
    """Which fields of a block cannot be so, and why, without their values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)
    return f"{'; '.join(fields)}; mend these fields on its page in Prefect"
