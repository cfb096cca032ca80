"""What the cost model must know of a language model: parameters, bytes, attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from dray.planner.models.attention import Attention
from dray.planner.models.formats import FORMATS
from dray.planner.models.recurrent import Recurrent


class Role(StrEnum):
    """When a part is read and computed with."""

    EMBEDDING = "looked up, one row per token"
    BODY = "read by every token"
    EXPERTS = "read by the tokens that are routed to it"
    HEAD = "read by the tokens from which the next one is sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Parameters that are used alike. ``format``: their numbers' name; ``bits`` of each, scales included.

    ``linear``: matrices that a GEMM reads, and that another format may replace. ``stored`` is false for an
    output layer that shares the embedding's matrix: it is read, but takes no memory of its own.
    """

    name: str
    role: Role
    parameters: int
    format: str
    bits: float
    arithmetic: str
    linear: bool = True
    stored: bool = True

    @property
    def bytes(self) -> float:
        """Bytes of all its parameters."""
        return self.parameters * self.bits / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A decoder, as its ``config.json`` describes it. Vision and audio towers are not counted.

    ``sublayers``: mixers and MLPs; most layers have one of each. ``intermediate`` is the width that each
    token passes through in the MLP of a mean layer, chosen experts included. ``dtype``: the number format
    that it computes in, and keeps states in; ``kv_format`` is that of its KV cache. ``widths`` are those of
    the MLPs that every token reads, and ``expert_width`` that of an expert: tensor parallelism splits them,
    and each rank's share must be a multiple of ``block``, or of ``expert_block``. The engine takes requests
    of ``max_length`` tokens; ``max_model_len`` may name up to ``most_length``. A step has to hold
    ``least_tokens``.
    """

    name: str
    family: str
    layers: int
    sublayers: int
    hidden: int
    heads: int
    intermediate: float
    vocabulary: int
    max_length: int
    most_length: int
    parts: tuple[Part, ...]
    attention: tuple[Attention, ...]
    recurrent: tuple[Recurrent, ...] = ()
    experts: int = 0
    experts_per_token: int = 0
    format: str = "bf16"
    dtype: str = "bf16"
    kv_format: str = "bf16"
    widths: tuple[int, ...] = ()
    block: int = 1
    expert_width: int = 0
    expert_block: int = 1
    least_tokens: int = 1
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All parameters; a shared matrix counts once."""
        return sum(part.parameters for part in self.parts if part.stored)

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint holds fewer bits than the model was trained in."""
        return self.format not in ("fp32", "bf16")

    def imbalance(self, stages: int) -> float:
        """Layers of the largest of so many pipeline stages over those of a mean one: layers stay whole."""
        return ceil(self.layers / stages) * stages / self.layers

    @property
    def routed_share(self) -> float:
        """The share of the experts that one token uses."""
        return self.experts_per_token / self.experts if self.experts else 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights in memory."""
        return sum(part.bytes for part in self.parts if part.stored)

    def loaded(self, *, as_stored: bool) -> ModelFacts:
        """The model as vLLM loads it: ``auto`` makes bf16 of fp32 on GPUs, unless it is to stay as stored."""
        if as_stored or not any(part.format == "fp32" for part in self.parts):
            return self
        new = FORMATS["bf16"]

        def changed(part: Part) -> Part:
            if part.format != "fp32":
                return part
            return replace(part, format=new.name, bits=new.bits, arithmetic=new.arithmetic)

        return replace(
            self,
            format="bf16" if self.format == "fp32" else self.format,
            dtype="bf16",
            kv_format="bf16" if self.kv_format == "fp32" else self.kv_format,
            parts=tuple(changed(part) for part in self.parts),
        )

    def in_format(self, name: str) -> ModelFacts:
        """The same model with its unquantized linear layers in another format, but for the output layer.

        This is what vLLM's ``quantization`` argument does to them as it loads; the output layer stays.
        """
        if name == self.format:
            return self
        new = FORMATS[name]

        def changed(part: Part) -> Part:
            if not part.linear or part.role is Role.HEAD or part.format != self.format:
                return part
            return replace(part, format=new.name, bits=new.bits, arithmetic=new.arithmetic)

        return replace(self, format=name, parts=tuple(changed(part) for part in self.parts))
