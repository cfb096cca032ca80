"""``dray plan``: what a job will take, on which hardware, before anything is paid for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dray.job_plan.job_plan import JobPlan, Known, plan_job
from dray.job_plan.request import PlanRequest


def plan(*values: Any, known: Known | None = None, **options: Any) -> JobPlan:
    """The plan of a job: ``dray.plan("rows.jsonl", "models/llama", deadline="6h", hardware=["L40S"])``.

    Its parameters are the fields of :class:`PlanRequest`, in their order, by position or by name.

    Raises:
        ConfigError: the model, or an option, cannot be used.
        InputError: the input is missing, or cannot be read.
    """
    return plan_job(PlanRequest.of(*values, **options).dated(datetime.now(UTC)), known=known)


__all__ = ["JobPlan", "Known", "PlanRequest", "plan", "plan_job"]
