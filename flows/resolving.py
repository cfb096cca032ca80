"""From what people type into a form to frozen settings: names of blocks and variables become values."""

from __future__ import annotations

from typing import Any

from blocks.model_source import ModelPlace, ModelSource
from blocks.object_store import ObjectStoreCredentials
from blocks.ray_cluster import ExistingRayCluster, LocalRayCluster
from blocks.result_store import ResultStore
from dray.cluster import ClusterSettings
from dray.errors import ConfigError
from dray.job.request import BLOCK, JobRequest
from dray.job.settings import JobSettings, Places
from dray.storage import ObjectStoreOptions
from dray.storage.addresses import holds_password, without_variable
from dray.storage.files import absolute, join
from dray.storage.objects import is_object


def job_settings(request: JobRequest) -> JobSettings:
    """The settings of the job that is asked for.

    Raises:
        ConfigError: options that do not go together, or a block or variable that is not there.
    """
    request = request.anchored()
    return JobSettings.of(request, _places(request))


def _places(request: JobRequest) -> Places:
    place = _model(request.model)
    return Places(
        inputs=without_variable(request.input) if isinstance(request.input, str) else request.input,
        model=absolute(place.uri),
        store_url=store_url(request.store, request.output),
        objects=_objects(request.objects),
        model_objects=place.objects,
    )


def store_url(store: str | None, output: str) -> str:
    """The store's URL: as given, from a block or a variable, or a SQLite file in the output folder."""
    if store is None:
        if is_object(output):
            raise ConfigError(
                f"output {output} is an object store; name a store as well, for example --store sqlite:///jobs.db"
            )
        return f"sqlite:///{join(output, 'dray.db')}"
    if store.startswith(BLOCK):
        url: str = _block(ResultStore, store).settings()
        return url
    if holds_password(store):
        raise ConfigError(
            "the store's URL holds a password, which Prefect would keep with the run's parameters: "
            "put it into a variable (env:NAME) or a block (block:NAME)"
        )
    return without_variable(store)


def cluster_settings(cluster: str) -> ClusterSettings:
    """``local``, ``block:NAME``, or the address of a Ray cluster."""
    if cluster == "local":
        return ClusterSettings()
    if cluster.startswith(BLOCK):
        name = cluster.removeprefix(BLOCK)
        kind, _, document = name.rpartition("/")
        block_type = ExistingRayCluster if kind == ExistingRayCluster._block_type_slug else LocalRayCluster
        settings: ClusterSettings = _block(block_type, f"{BLOCK}{document}").settings()
        return settings
    return ClusterSettings(address=cluster)


def _model(model: str) -> ModelPlace:
    if not model.startswith(BLOCK):
        return ModelPlace(uri=model, objects=None)
    place: ModelPlace = _block(ModelSource, model).settings()
    return place


def _objects(block: str | None) -> ObjectStoreOptions | None:
    return None if block is None else _block(ObjectStoreCredentials, block).settings()


def _block(block_type: Any, reference: str) -> Any:
    name = reference.removeprefix(BLOCK)
    try:
        return block_type.load(name)
    except ValueError as error:
        slug = block_type._block_type_slug
        raise ConfigError(f"no {slug} block named {name!r} in Prefect; see `prefect block ls`") from error
