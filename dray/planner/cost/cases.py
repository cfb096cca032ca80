"""Which configurations of an instance can run a job: a replica on one node, or on several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from dray.planner.catalogue import Instance
from dray.planner.cost.choices import Refusal, refusal, settings, without_split
from dray.planner.cost.demand import Demand, Setting
from dray.planner.cost.limits import PlanLimits
from dray.planner.cost.memory import in_blocks, length_that_fits
from dray.planner.models import ModelFacts

_MARGIN = 1.5
_STEP = 1024
"""Of a ``max_model_len``: a round number."""


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration that can run the job. ``demand`` is that of the job, but for what its cache serves.

    ``shared``: the share of the input that a prefix cache without blocks would serve.
    """

    instance: Instance
    model: ModelFacts
    setting: Setting
    demand: Demand
    limits: PlanLimits
    shared: float


@dataclass(frozen=True, slots=True)
class Tried:
    """The configurations that can run, and why others cannot."""

    cases: tuple[Case, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def cases_of(instance: Instance, model: ModelFacts, demand: Demand, limits: PlanLimits) -> Tried:
    """The configurations on one node, or on as many as the limits name."""
    return _over(limits.nodes or 1, instance, model, demand, limits)


def cases_over_nodes(instance: Instance, model: ModelFacts, demand: Demand, limits: PlanLimits) -> Tried:
    """The configurations over the fewest nodes that can run the model, and over twice as many at most.

    None where the limits name the nodes.
    """
    cases: list[Case] = []
    refusals: list[Refusal] = []
    if limits.nodes is not None or instance.network is None:
        return Tried()
    for nodes in range(2, limits.max_machines + 1):
        if cases and nodes > 2 * cases[0].setting.nodes:
            break
        tried = _over(nodes, instance, model, demand, limits)
        cases += tried.cases
        refusals += tried.refusals
    return Tried(tuple(cases), tuple(refusals))


def _over(nodes: int, instance: Instance, model: ModelFacts, demand: Demand, limits: PlanLimits) -> Tried:
    problem = _no_nodes(instance, nodes, limits)
    if problem is not None:
        return Tried(refusals=(problem,))
    own = model.loaded(as_stored=instance.device.keeps_dtype)
    needed = demand
    if limits.max_model_len is not None:  # the engine starts only with room for one such request
        needed = replace(
            demand, longest_tokens=max(demand.longest, min(limits.max_model_len, own.max_length))
        )
    cases: list[Case] = []
    refusals: list[Refusal] = []
    for setting in settings(instance, own, limits, nodes):
        facts = own.in_format(setting.weights)
        problem = refusal(instance, facts, setting, in_blocks(facts, setting, needed))
        if problem is None:
            served = in_blocks(facts, setting, demand)
            length = limits.max_model_len or _length(instance, facts, setting, served)
            ready = replace(setting, max_model_len=length)
            cases.append(Case(instance, facts, ready, served, limits, demand.hit_share))
        else:
            refusals.append(problem)
    if not cases and not refusals:
        refusals.append(without_split(instance, limits, nodes))
    return Tried(tuple(cases), tuple(refusals))


def _length(instance: Instance, model: ModelFacts, setting: Setting, demand: Demand) -> int | None:
    """The ``max_model_len`` without which the engine does not start; None where it holds the model's own.

    vLLM asks for room for one request of the whole length. Half of what fits bears errors of this estimate,
    and requests half as long again as the longest bear those of its tokens.
    """
    fits = length_that_fits(model, instance.device, setting, demand)
    if fits >= model.max_length:
        return None
    wanted = max(_MARGIN * demand.longest, fits / 2)
    rounded = ceil(wanted / _STEP) * _STEP
    return rounded if rounded <= fits else max(int(fits), ceil(demand.longest))


def _no_nodes(instance: Instance, nodes: int, limits: PlanLimits) -> Refusal | None:
    """Why no replica can be on so many of an instance, whatever the model is; None where one can."""
    if nodes > limits.max_machines:
        most = limits.max_machines
        reason = f"A replica over {nodes} nodes needs as many machines; --max-machines allows {most}."
    elif nodes > 1 and instance.network is None:
        reason = f"No network between nodes with {instance.device.name} is known, so a replica is on one."
    else:
        return None
    return Refusal(instance=instance.name, setting=None, reason=reason)
