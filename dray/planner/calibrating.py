"""Turns probes of a real engine into a catalogue entry: what the processor does beside the model's work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np

from dray.planner.catalogue import Measured, calibrated
from dray.planner.cost import Demand, ModelledReplica, Setting
from dray.planner.cost.step import (
    decode_attention_seconds,
    elementwise_seconds,
    gemm_seconds,
    prefill_attention_seconds,
)
from dray.planner.models import model_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What ``rows`` requests of ``prompt`` and ``output`` tokens took at once: ``steps`` and ``seconds``."""

    rows: int
    prompt: int
    output: int
    steps: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A machine's figures; ``error`` is the median of how far the fit is off the probes, as a share."""

    measured: Measured
    error: float
    probes: int


def calibration_of(found: Mapping[str, Any], *, day: date, dollars_per_hour: float = 0.0) -> Calibration:
    """The entry of a machine from what :mod:`dray.engine.calibration` printed.

    Raises:
        ConfigError: a figure cannot be, or the cost model does not know the model's family.
    """
    measured = Measured(
        name=str(found["name"]),
        gemm={name: float(rate) for name, rate in found["gemm"].items()},
        bandwidth=float(found["bandwidth"]),
        memory=float(found["memory"]),
        step=0.0,
        day=day,
        dollars_per_hour=dollars_per_hour,
        start=float(found["start"]),
        version=str(found["version"]),
        gpu=bool(found["gpu"]),
    )
    device = calibrated(measured).device
    replica = ModelledReplica(
        model=model_facts(json.loads(found["config"]), name="calibration").loaded(
            as_stored=device.keeps_dtype
        ),
        device=device,
        link=None,
        setting=Setting(max_num_seqs=int(found["seqs"]), max_num_batched_tokens=int(found["batched_tokens"])),
    )
    probes = _fastest(
        [
            Probe(**{name: one[name] for name in ("rows", "prompt", "output", "steps", "seconds")})
            for one in found["probes"]
        ]
    )
    step, sampled, prompt, request = fitted(replica, probes)
    entry = replace(measured, step=step, sampled=sampled, prompt=prompt, request=request)
    host = np.array([step, sampled, prompt, request])
    errors = [
        abs(model_seconds(replica, one) + float(_features(one) @ host) - one.seconds) / one.seconds
        for one in probes
    ]
    return Calibration(measured=entry, error=float(np.median(errors)), probes=len(probes))


def _fastest(probes: Sequence[Probe]) -> list[Probe]:
    """The fastest of each kind: other work on the machine only makes them slower."""
    best: dict[tuple[int, int, int], Probe] = {}
    for one in probes:
        key = (one.rows, one.prompt, one.output)
        if key not in best or one.seconds < best[key].seconds:
            best[key] = one
    return list(best.values())


def model_seconds(replica: ModelledReplica, probe: Probe) -> float:
    """What the cost model has for the model's own work in a probe, without the host's."""
    demand = Demand(rows=probe.rows, input_tokens=probe.prompt, output_tokens=probe.output)
    prompt = probe.rows * probe.prompt
    rounds = ceil(prompt / replica.setting.max_num_batched_tokens)
    later = probe.output - 1
    gemm = gemm_seconds(replica, prompt, probe.rows, rounds)
    gemm += later * gemm_seconds(replica, probe.rows, probe.rows, 1)
    attention = probe.rows * prefill_attention_seconds(replica, demand)
    attention += probe.rows * later * decode_attention_seconds(replica, demand)
    return gemm + attention + (prompt + probe.rows * later) * elementwise_seconds(replica)


def fitted(replica: ModelledReplica, probes: Sequence[Probe]) -> tuple[float, float, float, float]:
    """Seconds of a step, a sampled token, a prompt token and a request; none of them is negative.

    The least squares of relative errors, by trying every choice of which of the four are zero.
    """
    weights = np.array([1.0 / one.seconds for one in probes])
    rest = np.array([max(0.0, one.seconds - model_seconds(replica, one)) for one in probes]) * weights
    table = np.array([_features(one) for one in probes]) * weights[:, None]
    best, least = np.zeros(4), float(rest @ rest)
    for count in range(1, 5):
        for used in combinations(range(4), count):
            part, *_ = np.linalg.lstsq(table[:, used], rest, rcond=None)
            left = rest - table[:, used] @ part
            if (part >= 0).all() and float(left @ left) < least:
                best, least = np.zeros(4), float(left @ left)
                best[list(used)] = part
    return float(best[0]), float(best[1]), float(best[2]), float(best[3])


def _features(probe: Probe) -> np.ndarray[Any, np.dtype[np.float64]]:
    sampled = probe.rows * probe.output
    return np.array([probe.steps, sampled, probe.rows * probe.prompt, probe.rows], dtype=np.float64)
