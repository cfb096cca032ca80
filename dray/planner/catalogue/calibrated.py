"""A machine at hand as an instance, from what was measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from math import isfinite

from dray.errors import ConfigError
from dray.planner.catalogue.hardware import Device, Instance, Interruptions, Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on a machine at hand.

    ``gemm``: operations/s of a large GEMM, by arithmetic. ``bandwidth``: bytes/s of reading memory once.
    ``step``: seconds of one engine iteration beside the model's own work. ``memory``: bytes for weights and
    KV cache. ``attention``: operations/s of prefill attention; the GEMM's rate where it was not measured.
    ``sampled``, ``prompt``, ``request``: seconds on top of ``step`` for each sampled token, each prompt token
    that is computed, each request. ``start``: seconds until an engine is ready. ``version``: the engine's.
    ``gpu``: it is one, not a processor.
    """

    name: str
    gemm: Mapping[str, float]
    bandwidth: float
    step: float
    memory: float
    attention: float | None = None
    dollars_per_hour: float = 0.0
    day: date
    sampled: float = 0.0
    prompt: float = 0.0
    request: float = 0.0
    start: float | None = None
    version: str = ""
    gpu: bool = False


def calibrated(measured: Measured) -> Instance:
    """The machine as a catalogue entry. Efficiencies are 1: the rates themselves were measured.

    Raises:
        ConfigError: a measured figure is zero, negative or not finite; names it.
    """
    _check(measured)
    rate = measured.gemm.get("bf16") or next(iter(measured.gemm.values()))
    attention = min(1.0, (measured.attention or rate) / rate)
    device = Device(
        name=measured.name,
        memory=measured.memory,
        bandwidth=measured.bandwidth,
        peak=dict(measured.gemm),
        gemm=dict.fromkeys(measured.gemm, (1.0, 1.0)),
        attention=(attention, attention),
        weights={"bf16": 1.0},
        kv={"bf16": 1.0},
        host_seconds=measured.step,
        host_sampled=measured.sampled,
        host_prompt=measured.prompt,
        host_request=measured.request,
        calibrated=True,
        keeps_dtype=not measured.gpu,
    )
    dollars = measured.dollars_per_hour
    price = Price(likely=dollars, low=dollars, high=dollars, day=measured.day, source="calibration")
    none = Interruptions(low=0.0, likely=0.0, high=0.0)
    return Instance(
        name=measured.name,
        device=device,
        devices=1,
        on_demand=(price,),
        interruptions=none,
        boot=False,
        start_seconds=measured.start,
    )


def _check(measured: Measured) -> None:
    if not measured.gemm:
        raise ConfigError(f"calibration of {measured.name}: no GEMM was measured")
    figures = {f"gemm.{name}": rate for name, rate in measured.gemm.items()}
    figures |= {"bandwidth": measured.bandwidth, "memory": measured.memory}
    if measured.attention is not None:
        figures["attention"] = measured.attention
    for name, figure in figures.items():
        if not isfinite(figure) or figure <= 0:
            raise ConfigError(f"calibration of {measured.name}: {name} is {figure:g}; measure it again")
    names = ("step", "dollars_per_hour", "sampled", "prompt", "request")
    for name, figure in [(name, getattr(measured, name)) for name in names]:
        if not isfinite(figure) or figure < 0:
            raise ConfigError(f"calibration of {measured.name}: {name} is {figure:g}; measure it again")
