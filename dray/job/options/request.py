"""What a user asks for: the one form that the flow, its page in Prefect, the command line and the store read.

An option is declared here, or in forms.py beside this, and nowhere else: its name, type, default, limits,
and what it does. From that follow the parameter of the flow and the field in Prefect (flows/parameters.py),
the option of ``dray run`` (dray/cli/options.py), and the entry of the recipe by which a job is resumed
(:meth:`JobRequest.recipe`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from dray.cluster.cluster_file import anchored_file
from dray.durations import seconds_of
from dray.errors import ConfigError
from dray.job.options.dated import dated
from dray.job.options.forms import (
    GROUPS,
    SHORTCUTS,
    EngineOptions,
    Form,
    RowOptions,
    SamplingOptions,
    refuse_empty,
    shortcut,
)
from dray.job.options.spelling import parameter
from dray.kinds import Overflow
from dray.storage.absolute_paths import absolute
from dray.storage.addresses import VARIABLE, names_login
from dray.storage.layout import PART_BYTES

BLOCK = "block:"
"""Before the name of a Prefect block."""

_PLACES = ("input", "model", "output")
"""An empty one would be the working directory: an unset variable, or a field of a page that was cleared."""

_DATED = ("input", "output", "job_id", "store")
"""Where a run reads and writes, beside the query and the roots of its rows."""

_SQLITE = "sqlite:///"
_OF_ONE_RUN = {"job_id", "plan", "resume", "overwrite"}  # not in a recipe: another run says them anew


class Request(Form):
    """What a user asks for, read from arguments or from plain data."""

    @model_validator(mode="before")
    @classmethod
    def _shortcuts_into_groups(cls, given: dict[str, Any]) -> dict[str, Any]:
        own = {name: group for name, group in SHORTCUTS.items() if name in cls.model_fields}
        return into_groups(given, own)

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
        spelled = spelled or parameter
        for name in _PLACES:
            place = given.get(name)
            places = place if isinstance(place, list) else [place]
            if any(isinstance(one, str) and not one for one in places):
                raise ConfigError(
                    f"{spelled((name,))} is empty: name a path or an address (. is this folder)"
                )
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError(explained(error, spelled)) from None

    def dated(self, at: datetime) -> Self:
        """The same request for a run that was to start ``at``: see :func:`dray.job.options.dated.dated`."""
        own = dict(self)
        update = {name: _dated(own[name], at) for name in _DATED if own.get(name) is not None}
        from dray.requests.media.medium import roots_of  # with what reads rows, before a run's first line

        rows: RowOptions = own["rows"]
        texts = {"query": rows.query, **roots_of(rows)}
        said = {name: dated(value, at) for name, value in texts.items() if value is not None}
        return self.model_copy(update={**update, "rows": rows.model_copy(update=said)} if said else update)


class JobRequest(Request):
    """A batch job as its user asks for it.

    Names of blocks and of variables are not looked up yet, and nothing but the form itself is checked.

    Raises:
        ConfigError: a field is given twice with two values, or ``completion_window`` is no time.
        ValidationError: a value is not of its field; :meth:`read` says which in words.
    """

    input: str | list[str] = Field(
        kw_only=False,
        description="Paths, globs, object-store URIs or files of a dataset (hf://datasets/ORG/NAME/PATH): "
        "OpenAI batch JSONL, or rows as JSONL, CSV, TSV or Parquet.",
    )
    model: str = Field(
        kw_only=False,
        description="Directory of the model (config, tokenizer and safetensors), its URI (s3://..., "
        "hf://ORG/NAME), or block:NAME.",
    )
    output: str = Field(
        kw_only=False,
        description="Folder, or object-store URI, for output, errors and the report. {date}, {yesterday} and "
        "{time} stand for the time of the run, in UTC; also in input, store, job_id, query, image_root, "
        "audio_root and video_root.",
    )
    prompt_column: str | None = shortcut("prompt_column")
    system_prompt: str | None = shortcut("system_prompt")
    max_tokens: int | None = shortcut("max_tokens")
    temperature: float | None = shortcut("temperature")
    replicas: int | str | None = shortcut("replicas")
    rows: RowOptions = Field(
        default_factory=RowOptions,
        description="More options for how rows become requests: template, ids, SQL query, what to do with "
        "invalid rows.",
    )
    sampling: SamplingOptions = Field(
        default_factory=SamplingOptions,
        description="More request fields for rows that do not set them.",
    )
    engine: EngineOptions = Field(
        default_factory=EngineOptions,
        description="More options of the engine: its arguments, the size of shards, how long it may stand "
        "still.",
    )
    job_id: str | None = Field(
        default=None,
        description="Name of the job. If left out, dray derives it from input, model and settings.",
    )
    store: str | None = Field(
        default=None,
        description="Result store: block:NAME, env:NAME of a variable that holds its URL, or a URL without "
        "password, or a folder for dray.db, a SQLite file. If left out: `dray run` takes $DRAY_STORE, if "
        "set; else it is the output folder.",
    )
    cluster: str = Field(
        default="local",
        description="Ray cluster: local (dray starts Ray on this machine), block:NAME, a TOML file of a "
        "provider's settings, up:FILE for what `dray cluster up FILE` started, or the address of a running "
        "cluster.",
    )
    objects: str | None = Field(
        default=None,
        description="Credentials for object stores: block:NAME. If left out, those of the environment.",
    )
    overflow: Overflow = Field(
        default="error",
        description="What to do with a row that does not fit into the model's context: error makes an error "
        "row of it, shorten asks for fewer tokens, cut-head and cut-tail drop the begin or the end of its "
        "prompt.",
    )
    dedupe: bool | Literal["always"] = Field(
        default=False,
        description="Compute identical requests of the job once, where temperature is 0 or a seed is set; "
        "always: also sampled ones, which then share one answer.",
    )
    reuse: bool = Field(
        default=False,
        description="Take the answers that earlier jobs of the same store got to identical requests, "
        "from the same model and engine.",
    )
    format: Literal["jsonl", "parquet"] = Field(default="jsonl", description="Format of output and errors.")
    part_bytes: int = Field(
        default=PART_BYTES,
        ge=1024,
        description="Most bytes of a file of output or errors. More than that become output-00000.jsonl, "
        "output-00001.jsonl, ... and a manifest.",
    )
    completion_window: str | None = Field(
        default=None,
        description="Time for the job since it was created, such as 24h or 90m. Then unfinished rows become "
        "error rows.",
    )
    price: float | None = Field(
        default=None,
        ge=0,
        description="Dollars per hour of a node, for the bill in the report. If left out, dray's list price "
        "for the node's instance type, if known.",
    )
    plan: str | None = Field(
        default=None,
        description="File that `dray plan --json` wrote. The input has to be the one that was planned. The "
        "first plan's engine settings hold where none are given.",
    )
    deadline: str | None = Field(
        default=None,
        description="Time since the job was created within which it is to be finished, such as 6h. dray asks "
        "for as many replicas as that takes, and says whether it can be met. Nothing ends then.",
    )
    budget: float | None = Field(
        default=None,
        gt=0,
        description="Dollars that the nodes of the job may cost by price, earlier runs included. Then the "
        "job pauses, with all finished rows.",
    )
    resume: bool = Field(default=False, description="Go on with the job even if it was cancelled.")
    overwrite: bool = Field(
        default=False,
        description="Replace files of another job in the output folder. Without this, dray refuses that "
        "folder.",
    )

    _not_empty = field_validator("store", "cluster", "objects", "plan")(refuse_empty)

    @field_validator("completion_window")
    @classmethod
    def _is_a_time(cls, window: str | None) -> str | None:
        completion_seconds(window)
        return window

    @field_validator("deadline")
    @classmethod
    def _is_a_deadline(cls, deadline: str | None) -> str | None:
        deadline_seconds(deadline)
        return deadline

    def anchored(self) -> Self:
        """The same request with its local paths as seen from any working directory."""
        places = {
            "input": anchored_input(self.input, self.rows.query),
            "model": anchored_model(self.model, self.engine.name),
            "output": absolute(self.output),
            "store": _anchored_store(self.store),
            "plan": None if self.plan is None else absolute(self.plan),
            "cluster": anchored_file(self.cluster),
            "engine": self.engine.with_absolute_folders(),
            "rows": self.rows.anchored(),
        }
        return self.model_copy(update=places)

    def recipe(self) -> dict[str, Any]:
        """The flow's parameters for another run of the job. None stands for a URL that may hold a login."""
        kept = self.model_dump(exclude=_OF_ONE_RUN)
        if self.store is not None and names_login(self.store):
            kept["store"] = None
        inputs = [self.input] if isinstance(self.input, str) else self.input
        if self.rows.query is not None and any(map(names_login, inputs)):
            kept["input"] = None
        return kept


def _dated(given: str | list[str], at: datetime) -> str | list[str]:
    return dated(given, at) if isinstance(given, str) else [dated(one, at) for one in given]


def into_groups(given: Mapping[str, Any], shortcuts: Mapping[str, str]) -> dict[str, Any]:
    """Fields that were given by themselves, in the groups that hold them; ``shortcuts`` names these groups.

    Raises:
        ConfigError: a field is given twice, with two values.
    """
    absent = {group for group in GROUPS if given.get(group) is None}
    found = {name: value for name, value in given.items() if name not in absent}
    for name, group in shortcuts.items():
        value = found.pop(name, None)
        if value is not None:
            found[group] = _with_field(group, found.get(group, {}), name, value)
    return found


def _with_field(group: str, form: Form | Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """What is set of a group, and a field of it that was given by itself."""
    known = form.model_dump(exclude_unset=True) if isinstance(form, Form) else dict(form)
    there = known.get(name)
    if there is not None and there != value:
        raise ConfigError(f"{name} is given twice, with two values: by itself, and in {group}")
    return {**known, name: value}


def explained(error: ValidationError, spelled: Callable[[tuple[str, ...]], str]) -> str:
    """Which fields cannot be so, and why, without a text that was given."""
    problems: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False):
        path = tuple(map(str, problem["loc"]))
        field = spelled(path[:2] if path[0] in GROUPS else path[:1])
        given = f" {problem['input']}" if isinstance(problem["input"], int | float) else ""
        told = problems.setdefault(field, [f"{field}{given}"])
        message = problem["msg"].removeprefix("Value error, ")
        if message not in told:
            told.append(message)
    return "; ".join(f"{told[0]}: {', or: '.join(told[1:])}" for told in problems.values())


def anchored_model(model: str, engine: str) -> str:
    """The model as seen from any working directory; the name of a block stays as it is.

    A word that names no folder stays a word for the simulated engine, which reads no model: the same command
    is the same job in each folder.
    """
    if model.startswith(BLOCK):
        return model
    simulated = engine == "simulated"
    place = absolute(model, as_given=simulated)  # as the fingerprint has it: others count by what they hold
    is_word = simulated and "/" not in model and not Path(place).exists()
    return model if is_word else place


def anchored_input(given: str | list[str], query: str | None) -> str | list[str]:
    """The inputs as seen from any working directory; a variable stays as it is."""
    if isinstance(given, list):
        return [_anchored_one(item, query) for item in given]
    return _anchored_one(given, query)


def _anchored_one(given: str, query: str | None) -> str:
    if given.startswith(VARIABLE):
        return given
    return absolute(given) if query is None else _anchored_database(given)


def _anchored_database(url: str) -> str:
    """A SQLite file, as seen from anywhere: two projects may have a data.db each, and one store."""
    scheme, separator, file = url.partition(":///")
    if not separator or scheme.partition("+")[0] != "sqlite" or not file or file.startswith((":", "file:")):
        return url
    return f"{scheme}:///{absolute(file, as_given=True)}"  # the fingerprint has it so


def _anchored_store(store: str | None) -> str | None:
    """A SQLite file, by its path or by its URL, as seen from anywhere."""
    if store is None or store.startswith((VARIABLE, BLOCK)):
        return store
    file = store.removeprefix(_SQLITE)
    if not file or "://" in file or file.startswith((":", "file:")):  # the store refuses these
        return store
    return f"{_SQLITE if file != store else ''}{absolute(file)}"


def completion_seconds(window: str | None) -> float | None:
    """``90m``, ``24h``, ``7d`` or ``45s`` in seconds; None for None.

    Raises:
        ConfigError: it is not written so, or no time at all.
    """
    return _seconds("--completion-window", window)


def deadline_seconds(deadline: str | None) -> float | None:
    """The seconds of a deadline, written as :func:`completion_seconds` reads it; None where it is None.

    Raises:
        ConfigError: it is not written so, or no time at all.
    """
    return _seconds("--deadline", deadline)


def _seconds(name: str, given: str | None) -> float | None:
    if given is None:
        return None
    seconds = seconds_of(given)
    if not seconds:
        raise ConfigError(f"{name}: {given!r} is not a time such as 90m, 24h or 7d")
    return seconds
