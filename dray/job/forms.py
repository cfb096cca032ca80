"""The groups of a job's options: how rows become requests, fields of every request, and the engine.

A new option of a group is a field here: dray/job/request.py says what follows from it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dray.kinds import Kind, KindName

if TYPE_CHECKING:
    from dray.requests.sources import Source  # a tenth of a second, before the first line of a run


def _numbered(schema: dict[str, Any]) -> None:
    """Each field says its position: a server on PostgreSQL gives the fields of a schema in another order."""
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position


class Form(BaseModel):
    """Fields are labelled with their own names, as in Python and JSON."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        field_title_generator=lambda name, _: name,
        json_schema_extra=_numbered,
    )


class RowOptions(Form):
    """How the input's rows become requests."""

    kind: KindName = Field(
        default="chat",
        description="What rows with a prompt_column or template ask for; OpenAI batch files say it.",
    )
    prompt_column: str | None = Field(
        default=None,
        description="Column that holds the prompt: this, template or messages_column; none for OpenAI "
        "batch files.",
    )
    template: str | None = Field(
        default=None,
        description="Prompt made from columns, for example: Summarise this: {text}",
    )
    messages_column: str | None = Field(
        default=None,
        description="Column of chat messages (role, content); JSON lines and Parquet are searched for one.",
    )
    system_prompt: str | None = Field(
        default=None,
        description="System message for chat rows that do not begin with one.",
    )
    id_column: str | None = Field(
        default=None,
        description="Column that holds a unique id; row-0, row-1, ... without it.",
    )
    query: str | None = Field(
        default=None,
        description="SQL query to read rows with; the input is then a database URL, or env:NAME of a "
        "variable that holds it.",
    )
    delimiter: str | None = Field(
        default=None,
        description="What stands between the values of a CSV file, if no comma: ; or | or tab.",
    )
    model_name: str | None = Field(
        default=None,
        description="Name that rows may carry in body.model; rows that name another become error rows.",
    )
    skip_invalid: bool = Field(
        default=False,
        description="Turn invalid rows into error rows instead of refusing the input.",
    )

    def shape(self) -> dict[str, Any]:
        """What says how a row of columns becomes a request, by the names of :class:`RowShape`."""
        from dray.requests.sources import RowShape

        names = [field.name for field in fields(RowShape)]
        return {name: getattr(self, name) for name in names} | {"kind": Kind.named(self.kind)}

    def source(self, inputs: str | list[str]) -> Source:
        """The source that these options make of ``inputs``; raises as :func:`source_of`."""
        from dray.requests.sources import source_of

        return source_of(inputs, **self.shape(), query=self.query, delimiter=self.delimiter)


class SamplingOptions(Form):
    """Request fields for every row that does not set them itself."""

    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens to generate at most; the engine's default when left out.",
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        description="0 always takes the likeliest token; higher values vary more.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Sample from the likeliest tokens that together have this probability.",
    )
    seed: int | None = Field(
        default=None,
        description="Seed of the sampling; the same seed gives the same answers.",
    )
    extra: dict[str, Any] = Field(
        default_factory=dict,
        description="Any other field of the request body, for example response_format.",
    )

    def fields(self) -> dict[str, Any]:
        """The OpenAI body fields that are set."""
        given = self.model_dump(exclude={"extra"}, exclude_none=True)
        return given | self.extra


class EngineOptions(Form):
    """The engine and its replicas."""

    name: Literal["vllm", "simulated"] = Field(
        default="vllm",
        description="vllm, or simulated: answers made up without a model, to try out everything around it.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="Engines to run; one per GPU, or one on a machine without, when left out.",
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Engine arguments as vLLM names them, for example max_model_len.",
    )
    stall_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Seconds after which an engine that gets no further with its requests is ended.",
    )
    shard_rows: int | None = Field(
        default=None,
        ge=1,
        description="Rows of a shard: what one task runs, and what a lost worker gives back. Left out: at "
        "most 8192, and 16 shards or more for each of several replicas; no more than 512, or 16 a replica.",
    )
    replica_cpus: float | None = Field(
        default=None,
        gt=0,
        description="CPUs that each replica asks the cluster for. Left out: 1 beside GPUs, else as many as "
        "leave room for all replicas at once.",
    )
    replica_gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs that each replica asks the cluster for; 0 for an engine on CPUs. Left out: one for "
        "each rank, where the cluster has GPUs or vLLM is a build for them.",
    )


GROUPS: dict[str, type[Form]] = {"rows": RowOptions, "sampling": SamplingOptions, "engine": EngineOptions}
"""The nested forms, by the field that holds them."""
