"""What a user asks to be planned: the form that ``dray plan``, ``dray.plan`` and the flow read."""

from __future__ import annotations

import difflib
from typing import Any, Self

from pydantic import Field, field_validator

from dray.errors import ConfigError
from dray.job.options.forms import RowOptions, SamplingOptions, shortcut
from dray.job.options.request import BLOCK, Request, anchored_input, deadline_seconds
from dray.job_plan.arguments import limits_of
from dray.planner.cost import PlanLimits
from dray.planner.workload import SAMPLE_ROWS
from dray.planner.workload.images import IMAGE_TOKENS
from dray.planner.workload.prompts import COUNTED_FIELDS
from dray.storage.absolute_paths import absolute


class PlanRequest(Request):
    """A job as its user thinks of running it, and within what limits.

    Raises:
        ConfigError, ValidationError: as :class:`dray.job.options.request.JobRequest`.
    """

    input: str | list[str] = Field(
        kw_only=False,
        description="Paths, globs, object-store URIs or files of a dataset (hf://datasets/ORG/NAME/PATH): "
        "OpenAI batch JSONL, or rows as JSONL, CSV, TSV or Parquet.",
    )
    model: str = Field(
        kw_only=False,
        description="Directory of the model, its URI (s3://..., hf://ORG/NAME), or block:NAME. Its config "
        "and tokenizer are read, and no weights.",
    )
    prompt_column: str | None = shortcut("prompt_column")
    system_prompt: str | None = shortcut("system_prompt")
    max_tokens: int | None = shortcut("max_tokens")
    temperature: float | None = shortcut("temperature")
    deadline: str | None = Field(
        default=None,
        description="Time within which the last answer is to be there, such as 6h or 90m.",
    )
    budget: float | None = Field(default=None, gt=0, description="Most dollars that the run may cost.")
    hardware: list[str] = Field(
        default_factory=list,
        description="Instances or GPUs to choose from, * as a wildcard, such as L40S or p5.*. If left out: "
        "all of the catalogue.",
    )
    on_demand: bool = Field(
        default=False, description="No spot machines, which their cloud may take back at any time."
    )
    max_machines: int = Field(default=8, ge=1, description="Most machines of a plan.")
    weights: list[str] = Field(
        default_factory=list,
        description="Formats of the weights to choose from: bf16, fp8, int8, int4. Another one than the "
        "checkpoint's needs another checkpoint, and gives other answers. If left out: the checkpoint's own.",
    )
    prices: dict[str, float] = Field(
        default_factory=dict,
        description="Dollars per hour of an instance, in place of the catalogue's, such as g6e.xlarge=1.40; "
        "of a spot machine: g6e.xlarge:spot=0.60.",
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="A field of every request, also of those that set it themselves: what if max_tokens "
        "were 64?",
    )
    sample: int | None = Field(
        default=SAMPLE_ROWS,
        ge=0,
        description="Rows that the tokenizer counts; the others are counted by their bytes. 0 for all rows.",
    )
    image_tokens: int = Field(
        default=IMAGE_TOKENS,
        ge=1,
        description="Tokens that each image, sound or video counts as. Models differ.",
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Engine arguments as vLLM names them. A plan keeps to those of the split "
        "(tensor_parallel_size, pipeline_parallel_size, nnodes), of the batch and of the memory.",
    )
    rows: RowOptions = Field(
        default_factory=RowOptions, description="More options for how rows become requests."
    )
    sampling: SamplingOptions = Field(
        default_factory=SamplingOptions,
        description="More request fields for rows that do not set them.",
    )
    store: str | None = Field(
        default=None,
        description="Result store of earlier runs, whose measured speed and start the plan goes by: "
        "block:NAME, env:NAME, a URL, or a run's output folder. If left out: $DRAY_STORE, if set.",
    )
    objects: str | None = Field(
        default=None,
        description="Credentials for object stores: block:NAME. If left out, those of the environment.",
    )

    @field_validator("deadline")
    @classmethod
    def _is_a_time(cls, deadline: str | None) -> str | None:
        deadline_seconds(deadline)
        return deadline

    @field_validator("overrides")
    @classmethod
    def _are_counted(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        for name in overrides.keys() - COUNTED_FIELDS:
            near = difflib.get_close_matches(name, COUNTED_FIELDS, n=1)
            hint = f"do you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"request field {name!r}: {hint}A plan goes by {', '.join(sorted(COUNTED_FIELDS))}"
            )
        return overrides

    @field_validator("hardware", "weights", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        """``l40s,h100`` is two names."""
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list):
            return names
        return [part.strip() for name in names for part in str(name).split(",") if part.strip()]

    def anchored(self) -> Self:
        """The same request with its local paths as seen from any working directory."""
        model = self.model if self.model.startswith(BLOCK) else absolute(self.model)
        return self.model_copy(update={"input": anchored_input(self.input, self.rows.query), "model": model})

    def limits(self) -> PlanLimits:
        """The limits of the plans, as the cost model takes them.

        Raises:
            ConfigError: an engine argument cannot be.
        """
        limits = PlanLimits(
            deadline=deadline_seconds(self.deadline),
            budget=self.budget,
            hardware=tuple(self.hardware),
            spot=not self.on_demand,
            weights=tuple(self.weights),
            max_machines=self.max_machines,
            prices=self.prices,
        )
        return limits_of(limits, self.arguments)
