"""What the user allows: time, money, hardware, formats, settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isfinite

from dray.errors import ConfigError
from dray.planner.catalogue import Catalogue, Instance
from dray.planner.cost.demand import MEMORY_SHARE
from dray.planner.models import FORMATS, KV_BYTES

SPOT = ":spot"
"""Behind the name of an instance: its price as a spot machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """What a plan may take.

    Args:
        deadline: seconds from the start to the last result.
        budget: dollars of the whole run.
        hardware: names of instances or devices, ``*`` as a wildcard, in any case; empty for all.
        spot: machines that the cloud may take back are allowed.
        weights: formats of the weights; empty for the checkpoint's own, as another one changes answers.
        kv: formats of the KV cache; empty for the model's own.
        max_machines: the most machines of one plan.
        prices: dollars per hour by instance, in place of the catalogue's; ``NAME:spot`` for that of spot.
        max_num_seqs, max_num_batched_tokens: values to choose from.
        tensor_parallel, pipeline_parallel: of a replica; None for any.
        max_model_len: tokens of which the engine must hold one request; None for as many as fit.
        nodes: that a replica is on; None for one, or for as few as hold a model that no single node holds.

    Raises:
        ConfigError: a figure is out of bounds, or a format is not known; names it.
    """

    deadline: float | None = None
    budget: float | None = None
    hardware: tuple[str, ...] = ()
    spot: bool = True
    weights: tuple[str, ...] = ()
    kv: tuple[str, ...] = ()
    max_machines: int = 8
    prices: Mapping[str, float] = field(default_factory=dict)
    gpu_memory_utilization: float = MEMORY_SHARE
    max_num_seqs: tuple[int, ...] = (64, 256, 1024)
    max_num_batched_tokens: tuple[int, ...] = (2048, 8192)
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    nodes: int | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("deadline", "budget"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value:g}, but must be above zero")
        for name, price in self.prices.items():
            if not (isfinite(price) and price >= 0):
                raise ConfigError(f"the price of {name} is {price:g} dollars per hour; give zero or more")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError("gpu_memory_utilization must be above 0 and at most 1")
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ConfigError(f"{name} needs values of at least 1")
        for name in ("max_machines", "tensor_parallel", "pipeline_parallel", "nodes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        _known("weights", self.weights, FORMATS)
        _known("kv", self.kv, KV_BYTES)


def _known(name: str, given: tuple[str, ...], known: Mapping[str, object]) -> None:
    for one in given:
        if one not in known:
            raise ConfigError(f"{name} names the format {one!r}; known are {', '.join(known)}")


def allowed(catalogue: Catalogue, limits: PlanLimits) -> list[Instance]:
    """The instances that the hardware filter leaves; all where there is none.

    Raises:
        ConfigError: a pattern, or an instance with a price, is not in the catalogue; names the nearest.
    """
    names = {*catalogue.instances, *catalogue.devices()}
    for name in limits.prices:
        if name.removesuffix(SPOT) not in catalogue.instances:
            raise _unknown(name, set(catalogue.instances))
    for pattern in limits.hardware:
        if not any(_matches(name, pattern) for name in names):
            raise _unknown(pattern, names)
    return [
        one
        for one in catalogue.instances.values()
        if not limits.hardware
        or any(_matches(name, p) for p in limits.hardware for name in (one.name, one.device.name))
    ]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


def _unknown(name: str, names: set[str]) -> ConfigError:
    lower = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.3)
    hint = f"; the nearest is {lower[near[0]]}" if near else ""
    return ConfigError(f"the catalogue has no hardware {name!r}{hint}. Known are {', '.join(sorted(names))}")
