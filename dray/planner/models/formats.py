"""Number formats of weights: bits that a parameter takes in memory, and the arithmetic done with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """``bits`` of a parameter, scales included; ``arithmetic`` names the peak rate that a GEMM works at."""

    name: str
    bits: float
    arithmetic: str


FORMATS = {
    one.name: one
    for one in (
        Format("fp32", 32.0, "fp32"),
        Format("bf16", 16.0, "bf16"),
        Format("fp8", 8.0, "fp8"),
        Format("int8", 8.0, "int8"),
        Format("int4", 4.0 + 20 / 128, "bf16"),
        Format("nvfp4", 4.0 + 8 / 16, "fp4"),
        Format("mxfp4", 4.0 + 8 / 32, "bf16"),
    )
}
"""By name. Scales: int4 of AWQ and GPTQ has 16 bits and a zero point of 4 bits per group of 128. NVFP4 has
8 bits per 16, MXFP4 8 bits per 32 (OCP Microscaling Formats 1.0). Weight-only formats compute in bf16."""

KV_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0}
"""Bytes of one element of the KV cache."""

TORCH_NAMES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "bf16",
    "half": "bf16",
}
"""The names in ``torch_dtype``. float16 takes the bytes and the arithmetic rate of bf16."""


def kv_format(cache_dtype: str) -> str | None:
    """The format of a ``kv_cache_dtype`` such as ``fp8_e4m3``; None for the model's own, or if unknown."""
    if cache_dtype.startswith("fp8"):
        return "fp8"
    return cache_dtype if cache_dtype in KV_BYTES else TORCH_NAMES.get(cache_dtype)


def grouped(bits: int, group_size: int) -> Format:
    """A weight-only integer format with a 16-bit scale and a zero point per group; none where it is -1."""
    scales = (16 + bits) / group_size if group_size > 0 else 0.0
    return Format(f"int{bits}", bits + scales, "bf16")
