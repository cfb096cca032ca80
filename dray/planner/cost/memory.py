"""What of a replica's memory is left for the KV cache, and how many requests it holds at a time."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor

from dray.planner.catalogue import Device
from dray.planner.cost.demand import Demand, Setting
from dray.planner.models import KV_BYTES, ModelFacts
from dray.planner.models.attention import Attention

_COLLECTIVES = {1: 0.0, 2: 342 * 2**20}
"""Bytes per device of NCCL's buffers by devices of a group; 392 MiB above two (aiconfigurator @095f58a)."""
_LARGE_COLLECTIVES = 392.0 * 2**20
_LEAST_BLOCK = {False: 16, True: 128}
"""Tokens of a block of vLLM's cache beside recurrent layers, by whether attention is on a latent."""


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
    tokens = sum(one.kept(demand.hit) * _token(one, setting) for one in model.attention)
    return tokens + (state_bytes(model, setting) if demand.hit else 0.0)


def request_bytes(model: ModelFacts, setting: Setting, demand: Demand) -> float:
    """Bytes of the cache that a mean request holds of its own, in the mean over its life.

    An engine that reserves holds room for the whole output from the first token on.
    """
    private, whole = demand.input_tokens - demand.hit, demand.mean_total - demand.hit
    block, held = block_tokens(model, setting), 0.0
    for one in model.attention:
        kept = one.kept(whole) if setting.engine.reserves_outputs else one.mean_kept(private, whole)
        if block > 1:  # half of the last block is empty in the mean, and one block is the least
            kept = max(float(block), kept + block / 2)
        held += kept * _token(one, setting)
    return held + state_bytes(model, setting)


def longest_bytes(model: ModelFacts, setting: Setting, demand: Demand) -> float:
    """Bytes of the cache that the longest request holds at its end, its prefix included.

    vLLM asks for room for two states of it: that of the last block, and the one to come.
    """
    longest, block = max(demand.longest, demand.mean_total), block_tokens(model, setting)
    tokens = (ceil(one.kept(longest) / block) * block * _token(one, setting) for one in model.attention)
    return sum(tokens) + 2 * state_bytes(model, setting)


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


def block_tokens(model: ModelFacts, setting: Setting) -> int:
    """Tokens of a block of the cache; 1 where blocks are too small to matter.

    Beside recurrent layers vLLM makes a block of each attention layer as large as a recurrent layer's state,
    or larger (``Platform._align_hybrid_block_size``), and serves prefixes in whole blocks.
    """
    if not model.recurrent or not model.attention:
        return 1
    one = model.attention[0]
    state = max(each.layer_bytes(model.dtype) for each in model.recurrent)
    least = _LEAST_BLOCK[one.latent]
    return least * ceil(state / (least * _token(one, setting) / one.layers))


def state_bytes(model: ModelFacts, setting: Setting) -> float:
    """Bytes of one sequence's state in all recurrent layers, over all ranks: a block in each layer."""
    if not model.attention:
        return sum(one.bytes(model.dtype) for one in model.recurrent)
    one = model.attention[0]
    block = block_tokens(model, setting) * _token(one, setting) / one.layers
    return block * sum(each.layers for each in model.recurrent)


def in_blocks(model: ModelFacts, setting: Setting, demand: Demand) -> Demand:
    """The demand with what the prefix cache serves of the mean request in whole blocks."""
    block = block_tokens(model, setting)
    if block == 1:
        return demand
    return replace(demand, hit_share=floor(demand.hit / block) * block / demand.input_tokens)


def _token(one: Attention, setting: Setting) -> float:
    """Bytes of one token in the layers of a group, over all ranks; none where another group's are read."""
    if not one.stored:
        return 0.0
    each = one.cached * KV_BYTES[setting.kv] + one.index_bytes
    return one.layers * each * one.copies(setting.tensor_parallel)
