"""``dray plan``: what a job will take, on which hardware, before anything is paid for."""

from dray.planning.job_plan import JobPlan, plan_job
from dray.planning.request import PlanRequest

__all__ = ["JobPlan", "PlanRequest", "plan_job"]
