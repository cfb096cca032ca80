"""The parameters of the flows: small forms in the Prefect UI, settings in the code.

Fields are labelled with their own names, as in Python and JSON. Each says its position, because a server on
PostgreSQL gives the fields of a schema back in another order.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dray.errors import ConfigError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class _Form(BaseModel):
    group: ClassVar[str]
    """The flow's parameter that holds the form."""

    model_config = ConfigDict(extra="forbid", field_title_generator=lambda name, _: name)


class RowOptions(_Form):
    """How the input's rows become requests."""

    group = "rows"

    kind: Literal["chat", "completion", "embedding"] = Field(
        default="chat",
        description="What rows with a prompt_column or template ask for; OpenAI batch files say it.",
        json_schema_extra={"position": 0},
    )
    prompt_column: str | None = Field(
        default=None,
        description="Column of prompts: this, template or messages_column; none for OpenAI batch files.",
        json_schema_extra={"position": 1},
    )
    template: str | None = Field(
        default=None,
        description="Prompt made from columns, for example: Summarise this: {text}",
        json_schema_extra={"position": 2},
    )
    messages_column: str | None = Field(
        default=None,
        description="Column of chat messages (role, content); JSON lines and Parquet are searched for one.",
        json_schema_extra={"position": 3},
    )
    system_prompt: str | None = Field(
        default=None,
        description="System message for chat rows that do not begin with one.",
        json_schema_extra={"position": 4},
    )
    id_column: str | None = Field(
        default=None,
        description="Column that holds a unique id; row-0, row-1, ... without it.",
        json_schema_extra={"position": 5},
    )
    query: str | None = Field(
        default=None,
        description="SQL query to read rows with; input is then env:NAME of a variable with a database URL.",
        json_schema_extra={"position": 6},
    )
    delimiter: str | None = Field(
        default=None,
        description="What stands between the values of a CSV file, if no comma: ; or | or tab.",
        json_schema_extra={"position": 7},
    )
    model_name: str | None = Field(
        default=None,
        description="Name that rows may carry in body.model; rows that name another become error rows.",
        json_schema_extra={"position": 8},
    )
    skip_invalid: bool = Field(
        default=False,
        description="Turn invalid rows into error rows instead of refusing the input.",
        json_schema_extra={"position": 9},
    )


class SamplingOptions(_Form):
    """Request fields for every row that does not set them itself."""

    group = "sampling"

    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens to generate at most; the engine's default when left out.",
        json_schema_extra={"position": 0},
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        description="0 always takes the likeliest token; higher values vary more.",
        json_schema_extra={"position": 1},
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Sample from the likeliest tokens that together have this probability.",
        json_schema_extra={"position": 2},
    )
    seed: int | None = Field(
        default=None,
        description="Seed of the sampling; the same seed gives the same answers.",
        json_schema_extra={"position": 3},
    )
    extra: dict[str, Any] = Field(
        default_factory=dict,
        description="Any other field of the request body, for example response_format.",
        json_schema_extra={"position": 4},
    )

    def fields(self) -> dict[str, Any]:
        """The OpenAI body fields that are set."""
        given = self.model_dump(exclude={"extra"}, exclude_none=True)
        return given | self.extra


class EngineOptions(_Form):
    """The engine and its replicas."""

    group = "engine"

    name: Literal["vllm", "simulated"] = Field(
        default="vllm",
        description="vllm, or simulated: answers made up without a model, to try out everything around it.",
        json_schema_extra={"position": 0},
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="Engines to run; one per GPU, or one on a machine without, when left out.",
        json_schema_extra={"position": 1},
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Engine arguments as vLLM names them, for example max_model_len.",
        json_schema_extra={"position": 2},
    )
    stall_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Seconds after which an engine that gets no further with its requests is ended.",
        json_schema_extra={"position": 3},
    )
    shard_rows: int | None = Field(
        default=None,
        ge=1,
        description="Rows of a shard: what one task runs, and what a lost worker gives back. Left out: at "
        "most 8192, and 16 shards or more for each of several replicas; no more than 512, or 16 a replica.",
        json_schema_extra={"position": 4},
    )
    replica_cpus: float | None = Field(
        default=None,
        gt=0,
        description="CPUs that each replica asks the cluster for. Left out: 1 beside GPUs, else as many as "
        "leave room for all replicas at once.",
        json_schema_extra={"position": 5},
    )
    replica_gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs that each replica asks the cluster for; 0 for an engine on CPUs. Left out: one for "
        "each rank, where the cluster has GPUs or vLLM is a build for them.",
        json_schema_extra={"position": 6},
    )


Form = TypeVar("Form", bound=_Form)


def filled(form: Form, **usual: Any) -> Form:
    """``form`` with the usual fields, which the flow also takes beside it. None leaves a field as it is.

    Raises:
        ConfigError: a field is given twice, with two values, or with one that it does not take.
    """
    given = {name: value for name, value in usual.items() if value is not None}
    for name, value in given.items():
        there = getattr(form, name)
        if there is not None and there != value:
            raise ConfigError(f"{name} is given twice, with two values: by itself, and in {form.group}")
    try:
        return type(form)(**{**form.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        told = "; ".join(f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors())
        raise ConfigError(told) from None


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


__all__ = ["EngineOptions", "RowOptions", "SamplingOptions", "filled", "seconds_of"]
