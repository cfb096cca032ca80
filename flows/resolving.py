"""From what people type into a form to frozen settings: names of blocks and variables become values."""

from __future__ import annotations

import os
import re
from typing import Any

from blocks.model_source import ModelPlace, ModelSource
from blocks.object_store import ObjectStoreCredentials
from blocks.ray_cluster import ExistingRayCluster, LocalRayCluster
from blocks.result_store import ResultStore
from dray.cluster import ClusterSettings
from dray.errors import ConfigError
from dray.job.settings import JobSettings
from dray.requests import Kind, OutputFormat, RowDefaults, source_of
from dray.storage import ObjectStoreOptions
from dray.storage.files import absolute, join
from dray.storage.objects import is_object
from flows.parameters import EngineOptions, RowOptions, SamplingOptions, seconds_of

_VARIABLE = "env:"
_BLOCK = "block:"


def job_settings(
    *,
    inputs: str | list[str],
    model: str,
    output: str,
    job_id: str | None,
    rows: RowOptions,
    sampling: SamplingOptions,
    engine: EngineOptions,
    store: str | None,
    cluster: str,
    objects: str | None,
    output_format: OutputFormat,
    completion_window: str | None = None,
    overwrite: bool = False,
) -> JobSettings:
    """The settings of a job.

    Raises:
        ConfigError: options that do not go together, or a block or variable that is not there.
    """
    place = _model(model)
    output = absolute(output)
    if isinstance(inputs, list):
        inputs = [absolute(item) for item in inputs]
    elif rows.query is None and not inputs.startswith(_VARIABLE):
        inputs = absolute(inputs)
    source = source_of(
        _variable(inputs) if isinstance(inputs, str) else inputs,
        kind=Kind(rows.kind),
        prompt_column=rows.prompt_column,
        template=rows.template,
        system_prompt=rows.system_prompt,
        id_column=rows.id_column,
        messages_column=rows.messages_column,
        query=rows.query,
        delimiter=rows.delimiter,
    )
    return JobSettings(
        source=source,
        defaults=RowDefaults(model_name=rows.model_name, sampling=sampling.fields()),
        model=absolute(place.uri),
        output=output,
        store_url=store_url(store, output),
        engine=engine.name,
        engine_arguments=engine.arguments,
        replicas=engine.replicas,
        replica_cpus=engine.replica_cpus,
        replica_gpus=engine.replica_gpus,
        stall_seconds=engine.stall_seconds,
        shard_rows=engine.shard_rows,
        completion_window=seconds_of(completion_window),
        overwrite=overwrite,
        job_id=job_id,
        skip_invalid=rows.skip_invalid,
        format=output_format,
        objects=_objects(objects),
        model_objects=place.objects,
        bundles=absolute(place.bundles) if place.bundles is not None else None,
        recipe={
            "input": _unless_secret(inputs),
            "model": model if model.startswith(_BLOCK) else absolute(model),
            "output": output,
            "rows": rows.model_dump(),
            "sampling": sampling.model_dump(),
            "engine": engine.model_dump(),
            "store": _unless_secret(store),
            "cluster": cluster,
            "objects": objects,
            "format": output_format,
            "completion_window": completion_window,
        },
    )


_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@|password=", re.IGNORECASE)


def store_url(store: str | None, output: str) -> str:
    """The store's URL: as given, from a block or a variable, or a SQLite file in the output folder."""
    if store is None:
        if is_object(output):
            raise ConfigError(
                f"output {output} is an object store; name a store as well, for example --store sqlite:///jobs.db"
            )
        return f"sqlite:///{join(output, 'dray.db')}"
    if store.startswith(_BLOCK):
        url: str = _block(ResultStore, store).settings()
        return url
    if _PASSWORD.search(store):
        raise ConfigError(
            "the store's URL holds a password, which Prefect would keep with the run's parameters: "
            "put it into a variable (env:NAME) or a block (block:NAME)"
        )
    return _variable(store)


def cluster_settings(cluster: str) -> ClusterSettings:
    """``local``, ``block:NAME``, or the address of a Ray cluster."""
    if cluster == "local":
        return ClusterSettings()
    if cluster.startswith(_BLOCK):
        name = cluster.removeprefix(_BLOCK)
        kind, _, document = name.rpartition("/")
        block_type = ExistingRayCluster if kind == ExistingRayCluster._block_type_slug else LocalRayCluster
        settings: ClusterSettings = _block(block_type, f"{_BLOCK}{document}").settings()
        return settings
    return ClusterSettings(address=cluster)


def _model(model: str) -> ModelPlace:
    if not model.startswith(_BLOCK):
        return ModelPlace(uri=model, objects=None, bundles=None)
    place: ModelPlace = _block(ModelSource, model).settings()
    return place


def _objects(block: str | None) -> ObjectStoreOptions | None:
    return None if block is None else _block(ObjectStoreCredentials, block).settings()


def _variable(value: str) -> str:
    """The value, or what the environment variable after ``env:`` holds: secrets stay out of Prefect."""
    if not value.startswith(_VARIABLE):
        return value
    name = value.removeprefix(_VARIABLE)
    found = os.environ.get(name)
    if not found:
        raise ConfigError(f"environment variable {name} is not set")
    return found


def _unless_secret(value: Any) -> Any:
    """A URL that may hold a password is not kept: the user who resumes the job names it again."""
    if isinstance(value, str) and "://" in value and ("@" in value or "password" in value.lower()):
        return None
    return value


def _block(block_type: Any, reference: str) -> Any:
    name = reference.removeprefix(_BLOCK)
    try:
        return block_type.load(name)
    except ValueError as error:
        slug = block_type._block_type_slug
        raise ConfigError(f"no {slug} block named {name!r} in Prefect; see `prefect block ls`") from error
