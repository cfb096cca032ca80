"""What a user asks for: the one form that the flow, its page in Prefect, the command line and the store read.

An option is declared here alone: its name, type, default, limits, and what it does. From that follow the
parameter of the flow and the field in Prefect (flows/parameters.py), the option of ``dray run``
(dray/cli/options.py), and the entry of the recipe by which a job is resumed (:meth:`JobRequest.recipe`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dray.errors import ConfigError
from dray.kinds import Kind, KindName
from dray.storage.addresses import VARIABLE, names_login
from dray.storage.files import absolute

if TYPE_CHECKING:
    from dray.requests.sources import Source  # a tenth of a second, before the first line of a run

BLOCK = "block:"
"""Before the name of a Prefect block."""

_SQLITE = "sqlite:///"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _numbered(schema: dict[str, Any]) -> None:
    """Each field says its position: a server on PostgreSQL gives the fields of a schema in another order."""
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position


class _Form(BaseModel):
    """Fields are labelled with their own names, as in Python and JSON."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        field_title_generator=lambda name, _: name,
        json_schema_extra=_numbered,
    )


class RowOptions(_Form):
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


class SamplingOptions(_Form):
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


class EngineOptions(_Form):
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


GROUPS: dict[str, type[_Form]] = {"rows": RowOptions, "sampling": SamplingOptions, "engine": EngineOptions}
"""The nested forms, by the field that holds them."""

_SHORTCUTS = {
    "prompt_column": "rows",
    "system_prompt": "rows",
    "max_tokens": "sampling",
    "temperature": "sampling",
    "replicas": "engine",
}
_OF_ONE_RUN = {"job_id", "resume", "overwrite"}  # not in a recipe: another run says them anew


def _shortcut(name: str) -> Any:
    """A field of a group that may be given by itself. It is None once it is in its group."""
    described = GROUPS[_SHORTCUTS[name]].model_fields[name].description
    return Field(default=None, exclude=True, description=described)


class JobRequest(_Form):
    """A batch job as its user asks for it.

    Names of blocks and of variables are not looked up yet, and nothing but the form itself is checked.

    Raises:
        ConfigError: a field is given twice with two values, or ``completion_window`` is no time.
        ValidationError: a value is not of its field; :meth:`read` says which in words.
    """

    input: str | list[str] = Field(
        kw_only=False,
        description="Paths, globs or object-store URIs: OpenAI batch JSONL, or rows as JSONL, CSV or "
        "Parquet.",
    )
    model: str = Field(
        kw_only=False,
        description="Directory of the model (config, tokenizer and safetensors), its URI in an object store, "
        "or block:NAME.",
    )
    output: str = Field(
        kw_only=False,
        description="Folder, or object-store URI, for output, errors and the report.",
    )
    prompt_column: str | None = _shortcut("prompt_column")
    system_prompt: str | None = _shortcut("system_prompt")
    max_tokens: int | None = _shortcut("max_tokens")
    temperature: float | None = _shortcut("temperature")
    replicas: int | None = _shortcut("replicas")
    rows: RowOptions = Field(
        default_factory=RowOptions,
        description="More on how rows become requests: template, ids, SQL query, what to do with invalid "
        "rows.",
    )
    sampling: SamplingOptions = Field(
        default_factory=SamplingOptions,
        description="More request fields for rows that do not set them.",
    )
    engine: EngineOptions = Field(
        default_factory=EngineOptions,
        description="More of the engine: its arguments, the size of shards, patience with one that stands "
        "still.",
    )
    job_id: str | None = Field(
        default=None,
        description="Name of the job. Derived from input, model and settings when left out.",
    )
    store: str | None = Field(
        default=None,
        description="Result store: block:NAME, env:NAME of a variable with its URL, or a URL without "
        "password. A SQLite file in the output folder when left out.",
    )
    cluster: str = Field(
        default="local",
        description="Ray cluster: local, block:NAME, or the address of one that runs.",
    )
    objects: str | None = Field(
        default=None,
        description="Object-store credentials: block:NAME. The environment's when left out.",
    )
    format: Literal["jsonl", "parquet"] = Field(default="jsonl", description="Format of output and errors.")
    completion_window: str | None = Field(
        default=None,
        description="24h, 90m: what is unfinished so long after the job was created becomes error rows.",
    )
    resume: bool = Field(default=False, description="Go on with the job, too, if it was cancelled.")
    overwrite: bool = Field(
        default=False,
        description="Replace files of others in the output folder; they are refused otherwise.",
    )

    @classmethod
    def of(cls, *values: Any, **options: Any) -> Self:
        """A request from the flow's arguments, by position or by name.

        Raises:
            ConfigError: names the fields that cannot be so.
        """
        return cls.read({**dict(zip(cls.model_fields, values, strict=False)), **options})

    @classmethod
    def read(cls, given: Mapping[str, Any], spelled: Callable[[tuple[str, ...]], str] | None = None) -> Self:
        """A request from plain data; ``spelled`` gives the caller's name for the field at a path.

        Raises:
            ConfigError: names the fields that cannot be so, and quotes no texts.
        """
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError(_explained(error, spelled or (lambda path: path[-1]))) from None

    @model_validator(mode="before")
    @classmethod
    def _shortcuts_into_groups(cls, given: dict[str, Any]) -> dict[str, Any]:
        absent = {group for group in GROUPS if given.get(group) is None}
        found = {name: value for name, value in given.items() if name not in absent}
        for name, group in _SHORTCUTS.items():
            value = found.pop(name, None)
            if value is not None:
                found[group] = _with_field(group, found.get(group, {}), name, value)
        return found

    @field_validator("completion_window")
    @classmethod
    def _is_a_time(cls, window: str | None) -> str | None:
        seconds_of(window)
        return window

    def anchored(self) -> Self:
        """The same request with its local paths as seen from any working directory."""
        places = {
            "input": _anchored_input(self.input, self.rows.query),
            "model": self.model if self.model.startswith(BLOCK) else absolute(self.model),
            "output": absolute(self.output),
            "store": _anchored_store(self.store),
        }
        return self.model_copy(update=places)

    def recipe(self) -> dict[str, Any]:
        """The flow's parameters for another run of the job. None stands for a URL that may hold a login."""
        kept = self.model_dump(exclude=_OF_ONE_RUN)
        if self.store is not None and names_login(self.store):
            kept["store"] = None
        if isinstance(self.input, str) and self.rows.query is not None and names_login(self.input):
            kept["input"] = None
        return kept


def _with_field(group: str, form: _Form | Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """What is set of a group, and a field of it that was given by itself."""
    known = form.model_dump(exclude_unset=True) if isinstance(form, _Form) else dict(form)
    there = known.get(name)
    if there is not None and there != value:
        raise ConfigError(f"{name} is given twice, with two values: by itself, and in {group}")
    return {**known, name: value}


def _explained(error: ValidationError, spelled: Callable[[tuple[str, ...]], str]) -> str:
    problems = {}
    for problem in error.errors(include_url=False):
        path = tuple(map(str, problem["loc"]))
        field = spelled(path[:2] if path[0] in GROUPS else path[:1])
        given = f" {problem['input']}" if isinstance(problem["input"], int | float) else ""
        problems[field] = f"{field}{given}: {problem['msg']}"
    return "; ".join(problems.values())


def _anchored_input(given: str | list[str], query: str | None) -> str | list[str]:
    if isinstance(given, list):
        return [absolute(item) for item in given]
    return given if query is not None or given.startswith(VARIABLE) else absolute(given)


def _anchored_store(store: str | None) -> str | None:
    """A SQLite file, by its path or by its URL, as seen from anywhere."""
    if store is None or store.startswith((VARIABLE, BLOCK)):
        return store
    file = store.removeprefix(_SQLITE)
    if not file or "://" in file or file.startswith((":", "file:")):  # the store refuses these
        return store
    return f"{_SQLITE if file != store else ''}{absolute(file)}"


def seconds_of(window: str | None) -> float | None:
    """``90m``, ``24h``, ``7d`` or ``45s`` in seconds.

    Raises:
        ConfigError: it is not written so, or no time at all.
    """
    if window is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", window.strip())
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"completion_window: {window!r} is not a time such as 90m, 24h or 7d")
    return float(found[1]) * _UNITS[found[2]]
