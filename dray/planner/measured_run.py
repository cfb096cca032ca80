"""A finished run beside the cost model: the rate that it reached, over the one that the model gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dray.errors import ConfigError
from dray.planner.catalogue import Catalogue, Device, Instance
from dray.planner.cost import Demand, ModelledReplica, Phi, Setting, replica_on, replica_rate
from dray.planner.cost.demand import MEMORY_SHARE
from dray.planner.cost.interval import Interval, spanning
from dray.planner.cost.memory import batch_size
from dray.planner.cost.plan import START_ERROR
from dray.planner.cost.run_time import Rate
from dray.planner.models import FORMATS, ModelFacts, kv_format, model_facts

_MODULES = frozenset({"H100", "H200"})
_CARDS = frozenset({"PCIE", "NVL"})  # an A100's card has 0.95 of its module's bandwidth, and the same peak

LEAST_ROWS = 20
"""Rows of a run below which its rate says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What replicas ran: the model, the hardware, and the engine's settings."""

    model: ModelFacts
    instance: Instance
    setting: Setting

    @property
    def replica(self) -> ModelledReplica:
        """The replica as the cost model takes it."""
        return replica_on(self.instance, self.model, self.setting)

    def rate(self, demand: Demand, rows: float) -> Rate:
        """The rate with a phi of 1, of a replica that gets so many of the rows."""
        full = batch_size(self.model, self.instance.device, self.setting, demand)
        return replica_rate(self.replica, demand, max(1.0, min(full, rows)))


def setup_of(
    config: str, device: str, arguments: Mapping[str, Any], *, seqs: int, tokens: int, catalogue: Catalogue
) -> Setup | None:
    """What an engine says that it runs, as the cost model knows it; None where that is not in the catalogue.

    ``arguments`` are the engine's, ``seqs`` and ``tokens`` its limits of a step.
    """
    tensor = int(arguments.get("tensor_parallel_size") or 1)
    pipeline = int(arguments.get("pipeline_parallel_size") or 1)
    nodes = int(arguments.get("nnodes") or 1)
    instance = instance_of(device, catalogue, tensor * pipeline // nodes)
    if instance is None or not config or (nodes > 1 and instance.network is None):
        return None
    try:
        known = model_facts(json.loads(config)).loaded(as_stored=instance.device.keeps_dtype)
        model = _as_loaded(known, arguments)
    except (ConfigError, ValueError, KeyError):
        return None  # a family, or a format, that the model of costs does not know
    return Setup(
        model=model,
        instance=instance,
        setting=Setting(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            nodes=nodes,
            weights=model.format,
            kv=kv_format(str(arguments.get("kv_cache_dtype") or "")) or model.kv_format,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=float(arguments.get("gpu_memory_utilization") or MEMORY_SHARE),
        ),
    )


def _as_loaded(model: ModelFacts, arguments: Mapping[str, Any]) -> ModelFacts:
    """The model in the format that the engine's ``quantization`` makes; a quantized one stays as it is.

    Raises:
        KeyError: the format that the engine makes of it is not known.
    """
    asked = str(arguments.get("quantization") or model.format)
    if asked not in FORMATS and model.quantized:  # the name of a method, such as awq or compressed-tensors
        return model
    return model.in_format(asked)


def instance_of(device: str, catalogue: Catalogue, count: int = 1) -> Instance | None:
    """The smallest instance with so many of this device, or else the largest: it has the link between them.

    ``NVIDIA L40S`` and ``NVIDIA A100-SXM4-80GB`` are known.
    """
    devices = catalogue.devices()
    name = device if device in devices else _longest_match(device, devices)
    found = [one for one in catalogue.instances.values() if one.device.name == name]
    large = [one for one in found if one.devices >= count]
    if not large:
        return max(found, key=lambda one: one.devices, default=None)
    return min(large, key=lambda one: one.devices)


def _longest_match(device: str, known: Mapping[str, Device]) -> str | None:
    """The longest name of which each part is one of the device's: A100-80 not for 40 GB, L4 for no L40.

    None for a slice of a GPU, nor for a card of a GPU that the catalogue has as a module: it is slower.
    """
    parts = {part.removesuffix("GB") for part in re.split(r"[^A-Z0-9]+", device.upper())}
    if "MIG" in parts or (parts & _MODULES and parts & _CARDS):
        return None
    fitting = [
        name
        for name, one in known.items()
        if not one.calibrated and parts.issuperset(re.split(r"[^A-Z0-9]+", name.upper()))
    ]
    return max(fitting, key=len, default=None)


def measured_phi(setup: Setup, demand: Demand, work: Mapping[str, tuple[int, float]]) -> float | None:
    """Seconds that the cost model gives with a phi of 1, over those that replicas were busy.

    ``work``: rows and busy seconds by replica. None where too little was measured.
    """
    expected = busy = 0.0
    for rows, seconds in work.values():
        if rows and seconds > 0:
            expected += expected_seconds(setup, demand, rows)
            busy += seconds
    if busy <= 0 or sum(rows for rows, _ in work.values()) < LEAST_ROWS:
        return None
    return expected / busy


def expected_seconds(setup: Setup, demand: Demand, rows: float) -> float:
    """Seconds for so many rows on one replica with a phi of 1."""
    sequences = rows * demand.sequences
    rate = setup.rate(demand.by_sequence(), sequences)
    return float(sequences / rate.per_second + rate.tail)


def forecast(
    setup: Setup, demand: Demand, phi: Phi, *, replicas: float = 1.0, start: float = 0.0
) -> Interval:
    """Seconds from the start of a run to its last answer; its ``start`` may take a fifth more or less."""
    work = expected_seconds(setup, demand, demand.rows / replicas)
    return spanning(
        start + work / phi.likely,
        start * (1 - START_ERROR) + work / phi.high,
        start * (1 + START_ERROR) + work / phi.low,
    )
