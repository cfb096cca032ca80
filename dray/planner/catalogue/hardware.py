"""Devices, links and instances: the figures that the cost model computes with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from math import log2

_SMALL, _LARGE = 4096, 8192
"""Hidden sizes of Llama 8B and 70B, at whose shapes GEMM efficiencies were measured."""
_SHORT, _LONG = 2048, 8192
"""Prompt lengths at which the efficiency of prefill attention was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or the processor of a machine.

    ``memory`` in bytes, ``bandwidth`` in bytes/s, ``peak`` in dense operations/s by arithmetic.
    ``gemm``: share of the peak at the shapes of an 8B and of a 70B model, by arithmetic.
    ``attention``: share of the bf16 peak that prefill attention reaches at 2k and at 8k tokens.
    ``weights`` and ``kv``: share of the bandwidth at which a decode step reads them, by format.
    ``host_seconds``: overhead of one engine iteration, where it was measured on this very machine;
    ``host_sampled``, ``host_prompt`` and ``host_request`` come on top for each token that is sampled, each
    prompt token that is computed, and each request.
    ``keeps_dtype``: weights stay in the format in which they are stored, as dray has it on processors; a GPU
    has bf16 in place of fp32.
    ``doubts``: figures that no source backs, whatever runs; ``doubts_by``: those of an arithmetic alone.
    """

    name: str
    memory: float
    bandwidth: float
    peak: Mapping[str, float]
    gemm: Mapping[str, tuple[float, float]]
    attention: tuple[float, float]
    weights: Mapping[str, float]
    kv: Mapping[str, float]
    host_seconds: float | None = None
    host_sampled: float = 0.0
    host_prompt: float = 0.0
    host_request: float = 0.0
    doubts: tuple[str, ...] = ()
    doubts_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    calibrated: bool = False
    keeps_dtype: bool = False

    def arithmetic(self, wanted: str) -> str:
        """The arithmetic that the device works in: its own, else bf16, else the only one that it has."""
        for name in (wanted, "bf16", "fp32"):
            if name in self.peak:
                return name
        return next(iter(self.peak))

    def doubts_of(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Figures that no source backs, and that matter to work in these arithmetics."""
        own = (one for name in sorted(wanted) for one in self.doubts_by.get(self.arithmetic(name), ()))
        return tuple(dict.fromkeys([*own, *self.doubts]))

    def gemm_rate(self, arithmetic: str, hidden: int) -> float:
        """Operations/s of a GEMM, between the two measured shapes by the hidden size."""
        name = self.arithmetic(arithmetic)
        small, large = self.gemm[name]
        share = min(1.0, max(0.0, (hidden - _SMALL) / (_LARGE - _SMALL)))
        return self.peak[name] * (small + (large - small) * share)

    def attention_rate(self, length: float) -> float:
        """Operations/s of prefill attention, between the two measured lengths by log2 of the length."""
        short, long = self.attention
        share = log2(max(length, 1.0) / _SHORT) / log2(_LONG / _SHORT)
        return self.peak[self.arithmetic("bf16")] * (short + (long - short) * min(1.0, max(0.0, share)))

    def weight_rate(self, bits: float) -> float:
        """Bytes/s at which weights are read: as fp8 below 16 bits per parameter, else as bf16."""
        return self.bandwidth * _of_format(self.weights, "bf16" if bits >= 16 else "fp8")

    def kv_rate(self, kv_format: str) -> float:
        """Bytes/s at which the KV cache is read."""
        return self.bandwidth * _of_format(self.kv, kv_format)


def _of_format(shares: Mapping[str, float], name: str) -> float:
    return shares[name] if name in shares else next(iter(shares.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How the devices of an instance reach each other; ``all_reduce`` in bytes/s, by the group's size."""

    name: str
    all_reduce: Mapping[int, float]
    latency: float

    def rate(self, size: int) -> float:
        """Bytes/s of an all-reduce over ``size`` devices: that of the nearest measured size not below it."""
        measured = sorted(self.all_reduce)
        return self.all_reduce[next((one for one in measured if one >= size), measured[-1])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How instances of a kind reach each other: bytes/s of each, and seconds of a message's way."""

    bandwidth: float
    latency: float

    def all_reduce(self, nodes: int) -> float:
        """Bytes/s of an all-reduce over so many nodes, in a ring: each sends 2·(n-1)/n of the bytes."""
        return self.bandwidth * nodes / (2 * (nodes - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per hour on a day. ``low`` and ``high``: the range over zones."""

    likely: float
    low: float
    high: float
    day: date
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """Interruptions per hour of a spot instance."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine to rent; ``boot`` is false for one at hand. ``on_demand``: prices, oldest first.

    ``network`` is None where no replica may be on several of them.

    ``start_seconds``: from a run's beginning to the first ready replica, where it was measured.
    """

    name: str
    device: Device
    devices: int
    link: Link | None = None
    network: Network | None = None
    vcpus: int = 0
    ram: float = 0.0
    on_demand: tuple[Price, ...] = ()
    spot: Price | None = None
    interruptions: Interruptions = field(
        default_factory=lambda: Interruptions(low=0.001, likely=0.1, high=1.4)
    )
    boot: bool = True
    start_seconds: float | None = None

    def list_price(self, today: date) -> Price | None:
        """The latest list price not after ``today``; None where there was none yet."""
        return next((one for one in reversed(self.on_demand) if one.day <= today), None)

    def spot_price(self, today: date) -> Price | None:
        """The spot price, where it was known by ``today``."""
        return self.spot if self.spot is not None and self.spot.day <= today else None
