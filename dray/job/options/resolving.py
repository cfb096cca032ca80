"""Turns what people type into what a run needs: names of blocks and variables become values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from dray.cluster.base import ClusterSettings
from dray.cluster.cluster_file import SUFFIX, read_cluster_file
from dray.errors import ConfigError
from dray.job.options.plan_file import as_planned
from dray.job.options.request import BLOCK, JobRequest, anchored_model
from dray.job.options.settings import JobSettings, Resolved
from dray.storage.addresses import holds_password, refuse_secret, without_variable
from dray.storage.datasets import is_dataset, pinned
from dray.storage.files import join, reading
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.store.database.urls import file_url

LOCAL = "local"
"""The cluster of a job that starts Ray on its own machine."""


@dataclass(frozen=True, kw_only=True)
class ModelPlace:
    """A model's URI or folder, and how to reach it; ``objects`` None takes the job's credentials."""

    uri: str
    objects: ObjectStoreOptions | None = field(default=None, repr=False)


class Blocks(Protocol):
    """The values that are kept under names, for requests that say ``block:NAME``.

    Each call is given the NAME, and raises ConfigError where nothing is kept under it.
    """

    def store_url(self, name: str) -> str:
        """A result store's URL, with its password."""

    def model(self, name: str) -> ModelPlace:
        """A model."""

    def objects(self, name: str) -> ObjectStoreOptions:
        """Credentials of an object store."""

    def cluster(self, name: str) -> ClusterSettings:
        """A Ray cluster."""


class NoBlocks:
    """What stands for Prefect's blocks in a run without Prefect. It refuses each name, with a way out."""

    def store_url(self, name: str) -> str:
        """Refused."""
        _refuse("store", name, "put the store's URL into a variable, and name that: --store env:NAME")

    def model(self, name: str) -> ModelPlace:
        """Refused."""
        _refuse("model", name, "name the model's folder, or its address")

    def objects(self, name: str) -> ObjectStoreOptions:
        """Refused."""
        _refuse("objects", name, "leave it out, and set the store's own variables (AWS_ACCESS_KEY_ID)")

    def cluster(self, name: str) -> ClusterSettings:
        """Refused."""
        _refuse("cluster", name, "name the address of the cluster's head, with its token in RAY_AUTH_TOKEN")


def _refuse(field: str, name: str, advice: str) -> NoReturn:
    raise ConfigError(
        f"{field}: {BLOCK}{name} is kept in Prefect, and this installation of dray runs without; {advice}"
    )


def job_settings(request: JobRequest, blocks: Blocks) -> JobSettings:
    """The settings of the job that is asked for.

    Raises:
        ConfigError: options that do not go together, or a block or variable that is not there.
        JobChangedError: the plan was made for another input.
    """
    request = request.anchored()
    refuse_passwords(request.input, request.rows.query)
    place = model_place(request.model, blocks)
    places = Resolved(
        inputs=inputs_of(request.input),
        model=anchored_model(place.uri, request.engine.name),
        store_url=store_url(request.store, request.output, blocks, cluster=request.cluster),
        objects=objects_of(request.objects, blocks),
        model_objects=place.objects,
    )
    if request.plan is None:
        return JobSettings.of(request, places)
    return JobSettings.of(as_planned(request, places), places)


def inputs_of(given: str | list[str]) -> str | list[str]:
    """The inputs, with what the environment holds for those that name a variable, and commits for branches.

    So a job reads one commit of a hub's dataset, however often it looks.

    Raises:
        ConfigError: a variable is not set.
        InputError: the hub does not show the dataset.
    """
    if isinstance(given, str):
        return _input_of(given)
    return [_input_of(one) for one in given]


def _input_of(given: str) -> str:
    found = without_variable(given)
    if not is_dataset(found):
        return found
    refuse_secret(found)
    with reading(found):
        return pinned(found)


def refuse_passwords(given: str | list[str], query: str | None) -> None:
    """Refuse the URL of a query's database that holds a password, as one of a store is refused.

    Raises:
        ConfigError: says how else to give it.
    """
    inputs = [given] if isinstance(given, str) else given
    if query is not None and any(map(holds_password, inputs)):
        raise ConfigError(
            "the URL of the query's database holds a password, or an option that may be one, and would be "
            "kept with the run's parameters: put the URL into a variable, and name that as the input "
            "(env:NAME)"
        )


def store_url(store: str | None, output: str, blocks: Blocks, *, cluster: str = LOCAL) -> str:
    """The store's URL: as given, from a block or a variable, or a SQLite file in the output folder.

    Raises:
        ConfigError: it holds a password, or there is no store for an output in an object store.
    """
    if store is None:
        if is_object(output):
            example = (
                "sqlite:///jobs.db" if cluster == LOCAL else "env:NAME, a variable with a PostgreSQL's URL"
            )
            raise ConfigError(
                f"output {output} is an object store; name a store as well, for example --store {example}"
            )
        return file_url(join(output, "dray.db"))
    if store.startswith(BLOCK):
        return blocks.store_url(_name(store))
    refuse_password(store)
    return without_variable(store)


def refuse_password(store: str) -> None:
    """Refuse the URL of a store that holds a password.

    Raises:
        ConfigError: says how else to give it.
    """
    if holds_password(store):
        raise ConfigError(
            "the store's URL holds a password, or an option that may be one, and would be kept with the run's"
            " parameters: put it into a variable (env:NAME) or a block (block:NAME)"
        )


def cluster_settings(cluster: str, blocks: Blocks) -> ClusterSettings:
    """``local``, ``block:NAME``, a TOML file of settings, or the address of a Ray cluster."""
    if cluster == LOCAL:
        return ClusterSettings()
    if cluster.endswith(SUFFIX):
        return read_cluster_file(cluster)
    if cluster.startswith(BLOCK):
        return blocks.cluster(_name(cluster))
    return ClusterSettings(address=cluster)


def objects_of(objects: str | None, blocks: Blocks) -> ObjectStoreOptions | None:
    """Credentials of object stores; None for those of the environment."""
    return None if objects is None else blocks.objects(_name(objects))


def model_place(model: str, blocks: Blocks) -> ModelPlace:
    """A model's folder, URI or block."""
    return blocks.model(_name(model)) if model.startswith(BLOCK) else ModelPlace(uri=model)


def _name(reference: str) -> str:
    return reference.removeprefix(BLOCK)
