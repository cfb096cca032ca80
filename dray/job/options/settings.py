"""What a job is to do, as frozen data. Everything that runs gets it from here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dray.engine.adapters import adapter_names
from dray.engine.argument_policy import makes_weights_up
from dray.engine.chat_template import with_template_text
from dray.engine.protocol import EngineSpec
from dray.engine.tuning import refuse_untunable
from dray.errors import ConfigError
from dray.job.options.replica_range import read_range
from dray.job.options.request import JobRequest, completion_seconds
from dray.kinds import Kind
from dray.requests.media.medium import MEDIA, Medium, Roots, columns_of_files, roots_of
from dray.requests.outputs.files import OutputFormat
from dray.requests.reading.readers import ReadLimits
from dray.requests.sources import RowDefaults, Source
from dray.storage.addresses import refuse_secret
from dray.storage.objects import ObjectStoreOptions
from dray.weights import Manifest


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What the names in a request lead to: blocks and variables are read, paths are as seen from anywhere.

    ``store_url`` may hold a password. The other fields are as in :class:`JobSettings`.
    """

    inputs: str | list[str] = field(repr=False)
    model: str
    store_url: str = field(repr=False)
    objects: ObjectStoreOptions | None = field(default=None, repr=False)
    model_objects: ObjectStoreOptions | None = field(default=None, repr=False)


_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


_UNASKED = JobRequest(input=[], model="", output="")


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One batch job.

    ``model`` is a local directory that every node has, or the URI of one in an object store. ``replicas``
    None takes one per GPU, or one on a machine without; there may be ``most_replicas`` while shards wait,
    None for no more. Each asks the cluster for ``replica_cpus`` and ``replica_gpus``, or, where those are
    None, for what its engine needs. ``engine_arguments`` go to the engine as they are. The job's folder in
    ``output`` holds the spool; every stable node must reach it. ``store_url`` may hold a
    password and is kept out of the repr. ``model_objects`` reach the model, where that takes others than
    ``objects``. An engine that gets no further with its requests for ``stall_seconds`` is ended. What is
    unfinished ``completion_window`` seconds after the job was created becomes error rows; None for
    never. ``overwrite`` gives the job an output folder that holds files of others. ``shard_rows`` None
    leaves to ingest how many rows a shard has; there are at most 16,384, or 16 a replica, either way.
    ``request`` is what the user asked for; an option that needs no reading is read there. A program that
    fills the settings in itself leaves it out.
    """

    source: Source
    defaults: RowDefaults
    model: str
    output: str
    store_url: str = field(repr=False)
    engine: str = "vllm"
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)
    replicas: int | None = None
    most_replicas: int | None = None
    replica_cpus: float | None = None
    replica_gpus: float | None = None
    job_id: str | None = None
    skip_invalid: bool = False
    format: OutputFormat = "jsonl"
    limits: ReadLimits = field(default_factory=ReadLimits)
    shard_rows: int | None = None
    objects: ObjectStoreOptions | None = field(default=None, repr=False)
    model_objects: ObjectStoreOptions | None = field(default=None, repr=False)
    stall_seconds: float = 600.0
    completion_window: float | None = None
    overwrite: bool = False
    request: JobRequest = field(default=_UNASKED, repr=False)

    @classmethod
    def of(cls, request: JobRequest, places: Resolved) -> JobSettings:
        """The settings of a request whose paths are anchored, with what its names lead to.

        Raises:
            ConfigError, InputError: options that do not go together, or an input that cannot be.
        """
        rows, engine = request.rows, request.engine
        replicas = read_range(engine.replicas)
        return cls(
            source=rows.source(places.inputs),
            defaults=RowDefaults(
                model_name=rows.model_name,
                adapters=adapter_names(engine.arguments),
                sampling=request.sampling.fields(),
            ),
            model=places.model,
            output=request.output,
            store_url=places.store_url,
            engine=engine.name,
            engine_arguments=engine.arguments,
            replicas=None if replicas is None else replicas.least,
            most_replicas=None if replicas is None else replicas.most,
            replica_cpus=engine.replica_cpus,
            replica_gpus=engine.replica_gpus,
            stall_seconds=engine.stall_seconds,
            shard_rows=engine.shard_rows,
            completion_window=completion_seconds(request.completion_window),
            overwrite=request.overwrite,
            job_id=request.job_id,
            skip_invalid=rows.skip_invalid,
            format=request.format,
            objects=places.objects,
            model_objects=places.model_objects,
            request=request,
        )

    def __post_init__(self) -> None:
        if self.job_id is not None and not _JOB_ID.fullmatch(self.job_id):
            raise ConfigError(
                "job_id must be 1 to 128 letters, digits, '.', '_' or '-', starting with none of '.' and '-'"
            )
        for address in (self.model, self.output):
            refuse_secret(address)
        if self.replica_gpus is not None and not (
            0 <= self.replica_gpus <= 1 or (self.replica_gpus > 1 and float(self.replica_gpus).is_integer())
        ):
            raise ConfigError(
                "replica_gpus must be a part of one GPU, or a whole number: Ray gives no others"
            )
        if self.request.engine.auto:
            refuse_untunable(self.engine, self.engine_arguments)

    @property
    def recipe(self) -> dict[str, Any]:
        """The flow's parameters for another run of the job, which the store keeps; empty without a flow."""
        return {} if self.request == _UNASKED else self.request.recipe()

    def engine_spec(
        self,
        kind: Kind,
        model_name: str | None,
        *,
        weights: Manifest | None = None,
        weights_patience: float = 0.0,
    ) -> EngineSpec:
        """The engine of each replica; ``kind`` and ``model_name`` are what the input said.

        Raises:
            ConfigError: the file of a chat template cannot be read.
        """
        return EngineSpec(
            name=self.engine,
            model=self.model,
            kind=kind,
            model_name=model_name,
            arguments=with_template_text(self.engine_arguments),
            weights=weights,
            weights_patience=weights_patience,
            stall_seconds=self.stall_seconds,
            cpus=self.replica_cpus,
            gpus=self.replica_gpus,
            overflow=self.request.overflow,
            media=self.media,
            objects=self.model_access,
        )

    @property
    def media(self) -> frozenset[Medium]:
        """The media whose place the options name. Rows may hold others within themselves."""
        columns = columns_of_files(self.source.shape)
        return frozenset(one for one in MEDIA if one in columns or one.root in self.media_roots)

    @property
    def has_dummy_weights(self) -> bool:
        """Whether the engine makes its weights up, and reads none of the model's."""
        return makes_weights_up(self.engine_arguments)

    @property
    def rows_access(self) -> ObjectStoreOptions:
        """How the object store of rows and answers is reached, from any node.

        The environment's endpoint and region go along; its keys do not: nodes have theirs, or a block says.
        """
        return self.objects or ObjectStoreOptions.from_env()

    @property
    def media_roots(self) -> Roots:
        """Below these lie files that rows name; none where they name none."""
        return roots_of(self.source.shape)

    @property
    def model_access(self) -> ObjectStoreOptions:
        """How the model's object store is reached, from any node."""
        return self.model_objects or self.rows_access
