"""Seconds of one decode step of a whole batch, term by term.

In the steady state a step of ``batch`` requests samples one token of each and so finishes batch / O of them.
As many new requests come in, so the step also computes batch · (I - hit) / O prompt tokens (chunked prefill).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from dray.planner.catalogue import Device, Instance, Link, Network
from dray.planner.cost.demand import Demand, Setting
from dray.planner.models import KV_BYTES, ModelFacts, Part, Role

_NORM_COPIES = 4
"""Reads and writes of a hidden state in the fused add-and-norm kernel before each mixer and MLP: state and
residual, in and out. Each rank of a tensor-parallel group does all of them. Counted in vLLM's Llama."""
_ROTARY_COPIES = 2
_INTERMEDIATE_COPIES = 3
"""Of an MLP's width: the activation reads gate and up, and writes their product."""
_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step by what they go to. ``total`` is their sum."""

    gemm: float
    prefill_attention: float
    decode_attention: float
    elementwise: float
    communication: float
    host: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        attention = self.prefill_attention + self.decode_attention
        return self.gemm + attention + self.elementwise + self.communication + self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledReplica:
    """What a step runs on and with. ``network``: between nodes, where the replica is on several."""

    model: ModelFacts
    device: Device
    link: Link | None
    setting: Setting
    network: Network | None = None

    @property
    def devices(self) -> int:
        """Devices of the replica."""
        return self.setting.devices

    @property
    def imbalance(self) -> float:
        """Layers of the largest pipeline stage over those of the mean one: the largest sets the pace."""
        return self.model.imbalance(self.setting.pipeline_parallel)


def replica_on(instance: Instance, model: ModelFacts, setting: Setting) -> ModelledReplica:
    """A replica on as many of an instance as the setting says."""
    return ModelledReplica(
        model=model, device=instance.device, link=instance.link, setting=setting, network=instance.network
    )


def smax(a: float, b: float) -> float:
    """The larger one and a quarter of the smaller: compute and memory traffic overlap, but not wholly."""
    return max(a, b) + 0.25 * min(a, b)


def step_time(
    replica: ModelledReplica, demand: Demand, batch: float, *, decode_only: bool = False
) -> StepTime:
    """One step of ``batch`` requests; ``decode_only``: no new requests come in.

    With pipeline parallelism the batch is split into as many microbatches as there are stages. Each reads all
    weights again, and each pays for its iterations.
    """
    setting = replica.setting
    arriving = 0.0 if decode_only else batch / demand.output_tokens
    tokens = batch + arriving * (demand.input_tokens - demand.hit)
    microbatch = tokens / setting.pipeline_parallel
    rounds = max(1.0, microbatch / setting.max_num_batched_tokens) * setting.pipeline_parallel
    spread = replica.imbalance
    on_device = StepTime(
        gemm=spread * gemm_seconds(replica, tokens, batch, rounds),
        prefill_attention=spread * arriving * prefill_attention_seconds(replica, demand),
        decode_attention=spread * batch * decode_attention_seconds(replica, demand),
        elementwise=spread * tokens * elementwise_seconds(replica),
        communication=communication_seconds(replica, tokens, rounds),
        host=0.0,
    )
    host = rounds * host_seconds(replica) + work_of_host(replica.device, tokens, batch, arriving)
    return replace(on_device, host=max(host, least_seconds(replica, batch) - on_device.total))


def gemm_seconds(replica: ModelledReplica, tokens: float, sampled: float, rounds: float) -> float:
    """T_gemm: operations at the GEMM's rate against ``rounds`` reads of the weights, both split over devices.

    The output layer is computed for sampled tokens alone, as vLLM does; a token uses its own experts alone.
    """
    compute = read = 0.0
    for part in replica.model.parts:
        if part.role is Role.EMBEDDING:
            continue
        used = sampled if part.role is Role.HEAD else tokens
        share = replica.model.routed_share if part.role is Role.EXPERTS else 1.0
        rate = replica.device.gemm_rate(part.arithmetic, replica.model.hidden)
        compute += 2.0 * part.parameters * share * used / rate
        read += (
            part.bytes * touched(replica.model, part, tokens / rounds) / replica.device.weight_rate(part.bits)
        )
    return smax(compute, rounds * read) / replica.devices


def touched(model: ModelFacts, part: Part, tokens: float) -> float:
    """Share of a part that an iteration of ``tokens`` reads: 1 - (1 - k/E)^tokens of the experts."""
    if part.role is not Role.EXPERTS:
        return 1.0
    return float(1.0 - (1.0 - model.routed_share) ** tokens)


def prefill_attention_seconds(replica: ModelledReplica, demand: Demand) -> float:
    """T_attP of one request: causal attention of the tokens that the cache does not serve, and states."""
    rate = replica.devices * replica.device.attention_rate(demand.input_tokens)
    flops = sum(one.prefill_flops(demand.hit, demand.input_tokens) for one in replica.model.attention)
    each = sum(one.layers * one.operations for one in replica.model.recurrent)
    return (flops + each * (demand.input_tokens - demand.hit)) / rate


def decode_attention_seconds(replica: ModelledReplica, demand: Demand) -> float:
    """T_attD of one token: read the mean context's cache, or compute with it where that takes longer.

    A recurrent layer reads and writes the sequence's state, which takes longer than to compute with it.
    """
    device, setting, model = replica.device, replica.setting, replica.model
    seconds = 0.0
    for one in model.attention:
        context = one.mean_kept(demand.input_tokens, demand.mean_total)
        seen = one.mean_seen(demand.input_tokens, demand.mean_total)
        cache = seen * one.cached * KV_BYTES[setting.kv] + context * one.index_bytes
        cache *= one.layers * one.copies(setting.tensor_parallel)
        compute = one.decode_flops(seen, context) / device.attention_rate(context)
        seconds += max(cache / device.kv_rate(setting.kv), compute)
    states = sum(one.bytes(model.dtype) for one in model.recurrent)
    return (seconds + 2 * states / device.kv_rate("bf16")) / replica.devices


def elementwise_seconds(replica: ModelledReplica) -> float:
    """Memory traffic of norms, rotary embedding and activation for one token, at the decode kernels' rate."""
    model = replica.model
    norms = model.sublayers * _NORM_COPIES * replica.setting.tensor_parallel
    width = _ROTARY_COPIES * model.hidden + _INTERMEDIATE_COPIES * model.intermediate
    traffic = (norms * model.hidden + model.layers * width) * _ACTIVATION_BYTES
    return traffic / (replica.devices * replica.device.kv_rate("bf16"))


def communication_seconds(replica: ModelledReplica, tokens: float, rounds: float) -> float:
    """T_tp: an all-reduce of the hidden state after each mixer and MLP; between stages, it goes on once.

    An all-reduce over several nodes is one in each of them, and one between them. Of the ways between stages
    the slowest one sets the pace: that between nodes, where there are several.
    """
    setting, link, network, model = replica.setting, replica.link, replica.network, replica.model
    stages, nodes = setting.pipeline_parallel, ceil(setting.tensor_parallel / setting.on_each)
    state = tokens * model.hidden * _ACTIVATION_BYTES / stages
    reduces, seconds = model.sublayers, 0.0
    inside = setting.tensor_parallel // nodes
    if link is not None and inside > 1:
        seconds += reduces * (rounds / stages * link.latency + state / link.rate(inside))
    if network is not None and nodes > 1:
        seconds += reduces * (rounds / stages * network.latency + state / network.all_reduce(nodes))
    if network is not None and setting.nodes > 1 and stages > 1:
        seconds += rounds * network.latency + stages * state / network.bandwidth
    elif link is not None and stages > 1:
        seconds += rounds * link.latency + stages * state / link.rate(2)
    return seconds


def work_of_host(device: Device, tokens: float, sampled: float, requests: float) -> float:
    """What a calibrated machine's processor does for each token and each request of a step."""
    prompt = device.host_prompt * (tokens - sampled)
    return device.host_sampled * sampled + prompt + device.host_request * requests


def least_seconds(replica: ModelledReplica, batch: float) -> float:
    """What the host needs for a step of ``batch`` requests; a calibrated machine has terms of its own."""
    return 0.0 if replica.device.calibrated else batch * replica.setting.engine.sequence_seconds


def host_seconds(replica: ModelledReplica) -> float:
    """T_host of one iteration: measured on a calibrated machine, else the engine's."""
    measured = replica.device.host_seconds
    return replica.setting.engine.host_seconds if measured is None else measured
