"""The groups of a job's options: how rows become requests, fields of every request, and the engine.

A new option of a group is a field here: dray/job/options/request.py says what follows from it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from dray.job.options.plain import path_as_text, plain
from dray.job.options.replica_range import read_range
from dray.kinds import KindName, kind_named
from dray.storage.absolute_paths import absolute

if TYPE_CHECKING:
    from dray.requests.row_shape import RowShape  # a tenth of a second, before the first line of a run
    from dray.requests.sources import Source


def _numbered(schema: dict[str, Any]) -> None:
    """Each field says its position: a server on PostgreSQL gives the fields of a schema in another order."""
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position


def refuse_empty(value: Any) -> Any:
    """Refuse the value of a variable that is not set: as a path it would be the working directory."""
    if value == "":
        raise ValueError("it is empty: leave it out, or give it a value")
    return value


class Form(BaseModel):
    """Fields are labelled with their own names, as in Python and JSON."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        field_title_generator=lambda name, _: name,
        json_schema_extra=_numbered,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _takes_paths(cls, value: Any) -> Any:
        return path_as_text(value)

    @field_validator("*")
    @classmethod
    def _can_be_kept(cls, value: Any) -> Any:
        return value if isinstance(value, BaseModel) else plain(value)  # a group has judged its own fields


class RowOptions(Form):
    """How the input's rows become requests."""

    kind: KindName = Field(
        default="chat",
        description="Kind of request that each row becomes. Rows of OpenAI batch files say it by their url.",
    )
    prompt_column: str | None = Field(
        default=None,
        description="Column that holds the prompt. Give this, template or messages_column, and none of them "
        "for OpenAI batch files.",
    )
    template: str | None = Field(
        default=None,
        description="Prompt made from columns, for example: Summarise this: {text}",
    )
    reorder_fields: bool = Field(
        default=False,
        description="Let lines of the template that name columns change places, the same for all rows, so "
        "that rows share longer prefixes.",
    )
    messages_column: str | None = Field(
        default=None,
        description="Column of chat messages (role, content). If left out, dray looks for one in JSON lines "
        "and Parquet.",
    )
    system_prompt: str | None = Field(
        default=None,
        description="System message for chat rows that do not begin with one.",
    )
    image_column: str | None = Field(
        default=None,
        description="Column of images, for models that see: the bytes of a file, a name or URL, or a list of "
        "these. They come before the prompt.",
    )
    image_root: str | None = Field(
        default=None,
        description="Folder, or object-store prefix, below which images lie that rows name (image_url, or "
        "image_column). dray reads no image elsewhere.",
    )
    audio_column: str | None = Field(
        default=None,
        description="Column of sounds, for models that hear: the bytes of a file, or a name or URL. In chats "
        "also a list of these; they come before the prompt. Transcriptions and translations need no prompt.",
    )
    audio_root: str | None = Field(
        default=None,
        description="Folder, or object-store prefix, below which sounds lie that rows name (file_url, "
        "audio_url, or audio_column). dray reads no sound elsewhere.",
    )
    video_column: str | None = Field(
        default=None,
        description="Column of videos, for models that see them: the bytes of a file, a name or URL, or a "
        "list of these. They come before the prompt.",
    )
    video_root: str | None = Field(
        default=None,
        description="Folder, or object-store prefix, below which videos lie that rows name (video_url, or "
        "video_column). dray reads no video elsewhere.",
    )
    document_column: str | None = Field(
        default=None,
        description="Column of the texts that the prompt is held against, for scores and rankings: a text or "
        "a list of texts.",
    )
    id_column: str | None = Field(
        default=None,
        description="Column that holds a unique id. If left out, ids are row-0, row-1, ...",
    )
    keep_columns: list[str] = Field(
        default=[],
        description="Columns to write beside each answer, in Parquet as columns, in JSON lines in an object "
        "named row. On a command line, give the option once for each.",
    )
    query: str | None = Field(
        default=None,
        description="SQL query that gives the rows. The input is then a database URL, or env:NAME of a "
        "variable that holds it.",
    )
    delimiter: str | None = Field(
        default=None,
        description="Character between the values of a CSV file, if it is not a comma: ; or | or tab.",
    )
    quoting: Literal["csv", "none"] | None = Field(
        default=None,
        description="What quotes are in a CSV or TSV file: csv (around values) or none (plain characters, as "
        "databases export them). If left out: csv, but a value of several lines is refused between tabs.",
    )
    model_name: str | None = Field(
        default=None,
        description="Name of the model that rows may have in body.model. Rows with another name become error "
        "rows. The name of a LoRA adapter (lora_modules) gives it to rows that name no model.",
    )
    skip_invalid: bool = Field(
        default=False,
        description="Turn invalid rows into error rows instead of refusing the input.",
    )

    _not_empty = field_validator("image_root", "audio_root", "video_root", "query")(refuse_empty)

    def shape(self) -> RowShape:
        """How a row of columns becomes a request."""
        from dray.requests.row_shape import RowShape

        known = type(self).model_fields
        names = [field.name for field in fields(RowShape) if field.name in known]  # no option sets the others
        given = {name: getattr(self, name) for name in names}
        kept = tuple(dict.fromkeys(self.keep_columns))
        return RowShape(**given | {"kind": kind_named(self.kind), "keep_columns": kept})

    def anchored(self) -> Self:
        """The same options, with local folders as seen from any working directory."""
        from dray.requests.media.medium import roots_of

        # as given: fingerprints have the folders so
        given = {name: absolute(root, as_given=True) for name, root in roots_of(self).items()}
        return self.model_copy(update=given) if given else self

    def source(self, inputs: str | list[str]) -> Source:
        """The source that these options make of ``inputs``; raises as :func:`source_of`."""
        from dray.requests.sources import source_of

        return source_of(
            inputs, self.shape(), query=self.query, delimiter=self.delimiter, quoting=self.quoting
        )


class SamplingOptions(Form):
    """Request fields for every row that does not set them itself."""

    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of an answer. If left out, the engine's default.",
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        description="Sampling temperature. 0 always takes the likeliest token; higher values vary more.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Sample from the likeliest tokens that together have this probability.",
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        le=2**63 - 1,
        description="Seed of the sampling; the same seed gives the same answers.",
    )
    extra: dict[str, Any] = Field(
        default_factory=dict,
        description="Any other field of the request body, for example response_format.",
    )

    @field_validator("extra")
    @classmethod
    def _says_nothing_else(cls, extra: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for name in extra.keys() & info.data.keys():
            if info.data[name] is not None and info.data[name] != extra[name]:
                raise ValueError(
                    f"sets {name}, which is given by its own name too: keep one of the two values"
                )
        return extra

    def fields(self) -> dict[str, Any]:
        """The OpenAI body fields that are set."""
        given = self.model_dump(exclude={"extra"}, exclude_none=True)
        return given | self.extra


class EngineOptions(Form):
    """The engine and its replicas."""

    name: Literal["vllm", "simulated"] = Field(
        default="vllm",
        description="vllm, or simulated, which makes up answers without a model, to try out everything else.",
    )
    replicas: int | str | None = Field(
        default=None,
        description="Replicas to run, each with one engine: a number, or MIN:MAX, such as 1:8. Then "
        "the job begins with the fewest, asks for more while shards wait, and gives idle ones back at its "
        "end. If left out: as many as the GPUs hold, or one without GPUs.",
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Engine arguments as vLLM names them, for example max_model_len.",
    )
    stall_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Seconds without progress after which dray ends an engine that has requests.",
    )
    shard_rows: int | None = Field(
        default=None,
        ge=1,
        description="Rows of a shard, the part of a job that one shard task leases. If left out: at most "
        "8192, with 16 or more shards for each of several replicas, unless those had fewer than 128 rows, or "
        "twice max_num_seqs (256 if not given). A job has at most 16,384 shards, or 16 for each replica if "
        "that is more.",
    )
    order: Literal["auto", "input", "prefix"] = Field(
        default="auto",
        description="Order in which rows run: prefix (rows with a common prefix together, long answers "
        "first), input, or auto (prefix where it pays). Output files are in the order of the input.",
    )
    auto: bool = Field(
        default=False,
        description="Have each replica find the sequences at a time and tokens a step with which it is "
        "fastest, on the job's first rows. What engine arguments say stays.",
    )
    replica_cpus: float | None = Field(
        default=None,
        gt=0,
        description="CPUs that each replica asks Ray for. If left out: 1 beside GPUs, else as many as leave "
        "room for all replicas at once.",
    )
    replica_gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs that each replica asks Ray for; 0 for an engine on CPUs, 0.5 for two replicas of a "
        "small model on one GPU. If left out: one for each rank, if the cluster has GPUs or the installed "
        "vLLM is built for them.",
    )

    def with_absolute_folders(self) -> Self:
        """The same options, with the folders of LoRA adapters as seen from any working directory."""
        if "lora_modules" not in self.arguments:
            return self
        from dray.engine.adapters import with_absolute_folders  # with the engines, before a run's first line

        return self.model_copy(update={"arguments": with_absolute_folders(self.arguments)})

    @field_validator("replicas")
    @classmethod
    def _is_a_range(cls, replicas: int | str | None) -> int | str | None:
        found = read_range(replicas)
        if found is None:
            return None
        return found.least if found.fixed else str(found)


GROUPS: dict[str, type[Form]] = {"rows": RowOptions, "sampling": SamplingOptions, "engine": EngineOptions}
"""The nested forms, by the field that holds them."""

SHORTCUTS = {
    "prompt_column": "rows",
    "system_prompt": "rows",
    "max_tokens": "sampling",
    "temperature": "sampling",
    "replicas": "engine",
}
"""Fields that may be given by themselves, and the groups that they are of."""


def shortcut(name: str) -> Any:
    """A field of a group that may be given by itself. It is None once it is in its group."""
    described = GROUPS[SHORTCUTS[name]].model_fields[name].description
    return Field(default=None, exclude=True, description=described)
