"""What of a replica's memory is left for the KV cache, and how many requests it holds at a time."""

from __future__ import annotations

from dataclasses import replace

from dray.planner.catalogue import Device
from dray.planner.cost.demand import Demand, Setting
from dray.planner.models import KV_BYTES, ModelFacts
from dray.planner.models.attention import Attention

_COLLECTIVES = {1: 0.0, 2: 342 * 2**20}
"""Bytes per device of NCCL's buffers by devices of a group; 392 MiB above two (aiconfigurator @095f58a)."""
_LARGE_COLLECTIVES = 392.0 * 2**20


def kv_capacity(model: ModelFacts, device: Device, setting: Setting, demand: Demand) -> float:
    """Bytes for the KV cache of requests: C = n·(mem·u - overhead) - weights - resident prefixes.

    Negative where the weights do not fit. The largest pipeline stage bounds it: it has the most weights, and
    as much more of the cache.
    """
    per_device = device.memory * setting.gpu_memory_utilization - setting.engine.overhead
    per_device -= _COLLECTIVES.get(setting.devices, _LARGE_COLLECTIVES)
    usable = setting.devices * per_device / model.imbalance(setting.pipeline_parallel)
    return usable - model.weight_bytes - prefix_bytes(model, setting, demand)


def prefix_bytes(model: ModelFacts, setting: Setting, demand: Demand) -> float:
    """Bytes of one shared prefix of the mean hit, which stays in the cache for all requests that share it."""
    return sum(one.kept(demand.hit) * _token(one, setting) for one in model.attention)


def request_bytes(model: ModelFacts, setting: Setting, demand: Demand) -> float:
    """Bytes of the cache that a mean request holds of its own, in the mean over its life.

    An engine that reserves holds room for the whole output from the first token on.
    """
    private, whole = demand.input_tokens - demand.hit, demand.mean_total - demand.hit
    if setting.engine.reserves_outputs:
        return sum(one.kept(whole) * _token(one, setting) for one in model.attention)
    return sum(one.mean_kept(private, whole) * _token(one, setting) for one in model.attention)


def longest_bytes(model: ModelFacts, setting: Setting, demand: Demand) -> float:
    """Bytes of the cache that the longest request holds at its end, its prefix included."""
    longest = max(demand.longest, demand.mean_total)
    return sum(one.kept(longest) * _token(one, setting) for one in model.attention)


def missing_bytes(model: ModelFacts, device: Device, setting: Setting, demand: Demand) -> float:
    """Bytes that the replica lacks to hold the longest request; zero or less where it fits."""
    free = kv_capacity(model, device, setting, demand) + prefix_bytes(model, setting, demand)
    return longest_bytes(model, setting, demand) - free * setting.engine.fill


def length_that_fits(model: ModelFacts, device: Device, setting: Setting, demand: Demand) -> int:
    """Tokens of the longest request that the replica holds; the model's own length at most."""

    def fits(length: int) -> bool:
        request = replace(demand, longest_tokens=float(length))
        return missing_bytes(model, device, setting, request) <= 0

    if fits(model.max_length):
        return model.max_length
    least, most = 0, model.max_length  # the second one does not fit
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def batch_size(model: ModelFacts, device: Device, setting: Setting, demand: Demand) -> float:
    """Requests that run at a time in the mean: B = min(max_num_seqs, C / bytes per request).

    Below 1 where not even one mean request fits beside the resident prefixes.
    """
    capacity = setting.engine.fill * kv_capacity(model, device, setting, demand)
    return min(float(setting.max_num_seqs), capacity / request_bytes(model, setting, demand))


def _token(one: Attention, setting: Setting) -> float:
    """Bytes of one token in the layers of a group, over all ranks."""
    return one.layers * one.cached * KV_BYTES[setting.kv] * one.copies(setting.tensor_parallel)
