"""The parameters of the flows: small forms in the Prefect UI, settings in the code."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class RowOptions(BaseModel):
    """How the input's rows become requests."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["chat", "completion", "embedding"] = Field(
        default="chat",
        description="What rows with a prompt column or template ask for. OpenAI batch files say it themselves.",
        json_schema_extra={"position": 0},
    )
    prompt_column: str | None = Field(
        default=None,
        description="Column that holds the prompt, for JSONL, CSV, Parquet and SQL input.",
        json_schema_extra={"position": 1},
    )
    template: str | None = Field(
        default=None,
        description="Prompt made from columns, for example: Summarise this: {text}",
        json_schema_extra={"position": 2},
    )
    system_prompt: str | None = Field(
        default=None, description="System message for chat rows.", json_schema_extra={"position": 3}
    )
    id_column: str | None = Field(
        default=None,
        description="Column that holds a unique id; row-0, row-1, ... without it.",
        json_schema_extra={"position": 4},
    )
    query: str | None = Field(
        default=None,
        description="SQL query to read rows with; the input is then a database URL, or env:NAME of a variable with one.",
        json_schema_extra={"position": 5},
    )
    model_name: str | None = Field(
        default=None,
        description="Name that rows may carry in body.model; rows that name another become error rows.",
        json_schema_extra={"position": 6},
    )
    skip_invalid: bool = Field(
        default=False,
        description="Turn invalid rows into error rows instead of refusing the input.",
        json_schema_extra={"position": 7},
    )


class SamplingOptions(BaseModel):
    """Request fields for every row that does not set them itself."""

    model_config = ConfigDict(extra="forbid")

    max_tokens: int | None = Field(
        default=None, ge=1, description="Tokens to generate at most.", json_schema_extra={"position": 0}
    )
    temperature: float | None = Field(
        default=None, ge=0, description="0 is greedy.", json_schema_extra={"position": 1}
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Nucleus sampling.", json_schema_extra={"position": 2}
    )
    seed: int | None = Field(
        default=None, description="Seed of each request's sampling.", json_schema_extra={"position": 3}
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


class EngineOptions(BaseModel):
    """The engine and its replicas."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["vllm", "simulated"] = Field(
        default="vllm",
        description="vLLM, or a simulated engine without a model.",
        json_schema_extra={"position": 0},
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="Engines to run; one per GPU, or one without GPUs, when left out.",
        json_schema_extra={"position": 1},
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Engine arguments as vLLM names them, for example max_model_len.",
        json_schema_extra={"position": 2},
    )


__all__ = ["EngineOptions", "RowOptions", "SamplingOptions"]
