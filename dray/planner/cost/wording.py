"""What a plan is first for, or what is nearest, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from dray.planner.cost.choices import Refusal
from dray.planner.cost.limits import PlanLimits
from dray.planner.cost.plan import Plan
from dray.wording import duration, money


def why_first(table: Sequence[Plan], limits: PlanLimits) -> str:
    """Why the first plan of a table is first: its price beside that of the next other hardware."""
    first = table[0]
    goal = "cheapest" if limits.deadline is None else f"cheapest within {duration(limits.deadline)}"
    said = f"{_short(first)} is {goal}: {money(first.dollars.likely)} in {duration(first.seconds.likely)}"
    other = next((plan for plan in table if _differs(plan, first)), None)
    if other is None:
        return f"{said}."
    beside = f"{said}; {_short(other)} would cost {money(other.dollars.likely)}"
    if not first.dollars.likely:
        return f"{beside}."
    times = other.dollars.likely / first.dollars.likely
    if times < 1.25 or other.dollars.low <= first.dollars.high:
        return f"{beside}, which is within the model's uncertainty."
    return f"{beside}, {times:.1f} times as much."


def nearest_sentence(fastest: Plan, cheapest: Plan, limits: PlanLimits) -> str:
    """No plan keeps the limits: how near the fastest and the cheapest come."""
    asked = []
    if limits.deadline is not None:
        asked.append(f"takes at most {duration(limits.deadline)}")
    if limits.budget is not None:
        asked.append(f"costs at most {money(limits.budget)}")
    return (
        f"No plan with at most {limits.max_machines} machines {' and '.join(asked)}. "
        f"The fastest takes {duration(fastest.seconds.likely)} for {money(fastest.dollars.likely)} "
        f"({_short(fastest)}), the cheapest {duration(cheapest.seconds.likely)} for "
        f"{money(cheapest.dollars.likely)} ({_short(cheapest)})."
    )


def nothing_fits(refusals: Sequence[Refusal]) -> str:
    """No configuration can run: the one that lacks the least memory, or another reason."""
    if not refusals:
        return "No configuration can run. The catalogue is empty."
    nearest = min(refusals, key=lambda one: one.distance)
    if nearest.missing > 0:
        return f"The model fits nowhere. Nearest is {nearest.instance}: {nearest.reason}"
    return f"No configuration can run. {nearest.reason}"


def _short(plan: Plan) -> str:
    market = "spot" if plan.spot else "on demand"
    return f"{plan.machines} x {plan.instance.name} {market}"


def _differs(plan: Plan, other: Plan) -> bool:
    return (plan.instance.name, plan.spot) != (other.instance.name, other.spot)
