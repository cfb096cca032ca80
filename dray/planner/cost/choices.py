"""The configurations of an instance, and why some cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dray.planner.catalogue import Instance
from dray.planner.cost.demand import Demand, Setting
from dray.planner.cost.limits import PlanLimits
from dray.planner.cost.memory import batch_size, missing_bytes
from dray.planner.models import ModelFacts

_SPLITS = (1, 2, 4, 8, 16)
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A configuration that cannot run. ``missing``: bytes of memory that all its devices lack together."""

    instance: str
    setting: Setting | None
    reason: str
    missing: float = 0.0

    @property
    def distance(self) -> tuple[bool, bool, float]:
        """How far it is from running: what lacks memory first, then what hardware has enough devices for."""
        return self.missing <= 0, self.setting is None, self.missing


def settings(instance: Instance, model: ModelFacts, limits: PlanLimits, nodes: int = 1) -> Iterator[Setting]:
    """Every split and format that so many nodes have devices for, with the most sequences of the limits."""
    for tensor, pipeline in _splits(instance.devices, limits, nodes):
        for weights in limits.weights or (model.format,):
            for kv in limits.kv or (model.kv_format,):
                yield Setting(
                    tensor_parallel=tensor,
                    pipeline_parallel=pipeline,
                    nodes=nodes,
                    weights=weights,
                    kv=kv,
                    max_num_seqs=max(limits.max_num_seqs),
                    max_num_batched_tokens=limits.max_num_batched_tokens[0],
                    gpu_memory_utilization=limits.gpu_memory_utilization,
                )


def _splits(devices: int, limits: PlanLimits, nodes: int) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline parallelism over nodes with so many devices each.

    On several nodes a replica takes all of their devices, unless the limits name both. Each tensor-parallel
    group is within a node, or on whole nodes.
    """
    for tensor in _SPLITS if limits.tensor_parallel is None else (limits.tensor_parallel,):
        if limits.pipeline_parallel is not None:
            pipelines: tuple[int, ...] = (limits.pipeline_parallel,)
        else:
            pipelines = _SPLITS if nodes == 1 else (nodes * devices // tensor,)
        for pipeline in pipelines:
            on_each, left = divmod(tensor * pipeline, nodes)
            if left or not 0 < on_each <= devices or (on_each % tensor and tensor % on_each):
                continue
            named = limits.tensor_parallel is not None and limits.pipeline_parallel is not None
            if nodes == 1 or named or on_each == devices:
                yield tensor, pipeline


def without_split(instance: Instance, limits: PlanLimits, nodes: int) -> Refusal:
    """A refusal: so many of an instance have no split as the limits ask for one."""
    named = (("TP", limits.tensor_parallel), ("PP", limits.pipeline_parallel))
    asked = " ".join(f"{name} {size}" for name, size in named if size is not None)
    on = f"{instance.devices} x {instance.device.name}" if instance.devices > 1 else instance.device.name
    over = f"{nodes} nodes with {on} each" if nodes > 1 else f"one node with {on}"
    reason = f"{asked or 'No split'} {'cannot be' if asked else 'is'} shared out evenly over {over}."
    return Refusal(instance=instance.name, setting=None, reason=reason)


def tunings(setting: Setting, limits: PlanLimits) -> Iterator[Setting]:
    """The same split and formats with each of the engine settings that may be chosen.

    vLLM refuses a step with more sequences than tokens.
    """
    for tokens in limits.max_num_batched_tokens:
        for seqs in dict.fromkeys(min(one, tokens) for one in limits.max_num_seqs):
            yield replace(setting, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def refusal(instance: Instance, model: ModelFacts, setting: Setting, demand: Demand) -> Refusal | None:
    """Why the model cannot run so; None where it can. ``model`` is in the setting's format of weights."""
    reason, missing = _shape(model, setting, demand), 0.0
    if reason is None:
        missing = missing_bytes(model, instance.device, setting, demand)
        reason = _memory(instance, model, setting, demand, missing)
    if reason is None:
        return None
    return Refusal(instance=instance.name, setting=setting, reason=reason, missing=max(0.0, missing))


def _shape(model: ModelFacts, setting: Setting, demand: Demand) -> str | None:
    if demand.longest > model.max_length:
        return f"The longest request has {demand.longest:,.0f} tokens, the model takes {model.max_length:,}."
    if model.heads % setting.tensor_parallel:
        return f"{model.heads} attention heads cannot be split over {setting.tensor_parallel} devices."
    if (reason := _unequal(model, setting.tensor_parallel)) is not None:
        return reason
    if setting.pipeline_parallel > model.layers:
        return f"{model.layers} layers cannot be split into {setting.pipeline_parallel} pipeline stages."
    return None


def _unequal(model: ModelFacts, ranks: int) -> str | None:
    """What vLLM cannot split over so many ranks of a tensor-parallel group."""
    if ranks == 1:
        return None
    for heads in {one.kv_heads for one in model.attention}:
        if heads % ranks and ranks % heads:
            return f"{heads} key and value heads cannot be split over {ranks} devices."
    for heads in {heads for one in model.recurrent for heads in one.heads}:
        if heads % ranks:
            return f"{heads} heads of a recurrent layer's state cannot be split over {ranks} devices."
    shares = [("MLPs", width, model.block) for width in model.widths]
    for what, width, block in (*shares, ("Experts", model.expert_width, model.expert_block)):
        if width % (ranks * block):
            blocks = f" in blocks of {block}" if block > 1 else ""
            return f"{what} of {width:,}{blocks} cannot be split over {ranks} devices."
    return None


def _memory(
    instance: Instance, model: ModelFacts, setting: Setting, demand: Demand, missing: float
) -> str | None:
    count = setting.devices
    devices = f"{count} x {instance.device.name}" if count > 1 else f"One {instance.device.name}"
    devices += f" on {setting.nodes} nodes" if setting.nodes > 1 else ""
    if missing > 0:
        lack = "lack" if count > 1 else "lacks"
        return (
            f"{devices} {lack} {missing / _GB:,.1f} GB for {model.weight_bytes / _GB:,.1f} GB of weights "
            "and the KV cache of the longest request."
        )
    if batch_size(model, instance.device, setting, demand) < 1:
        return f"{devices} cannot hold one request beside the prefixes that stay in the cache."
    return None
