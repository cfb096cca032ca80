"""Seconds and dollars of a job on hardware that does not run yet: docs/planning.md."""

from dray.planner.cost.choices import Refusal
from dray.planner.cost.demand import VLLM, Demand, EnginePolicy, Setting
from dray.planner.cost.efficiency import PRIOR, Phi, PhiFor, prior
from dray.planner.cost.interval import Interval
from dray.planner.cost.limits import PlanLimits
from dray.planner.cost.plan import Plan
from dray.planner.cost.plans import Plans, best_of_each, plans
from dray.planner.cost.run_time import replica_rate
from dray.planner.cost.step import ModelledReplica, replica_on, step_time

__all__ = [
    "plans",
    "Plans",
    "Plan",
    "Refusal",
    "best_of_each",
    "Demand",
    "PlanLimits",
    "Interval",
    "Phi",
    "PhiFor",
    "PRIOR",
    "prior",
    "Setting",
    "EnginePolicy",
    "VLLM",
    "ModelledReplica",
    "replica_on",
    "step_time",
    "replica_rate",
]
