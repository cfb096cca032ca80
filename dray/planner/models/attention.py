"""Attention of layers that are alike: what they keep per token, and what they compute with it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

_INDEX_BLOCK = 128
"""Elements of an indexer's key that share a scale of 4 bytes (vLLM's ``DeepseekV32IndexerCache``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``layers`` with the same attention.

    ``cached`` elements are kept per token and layer, for ``kv_heads`` heads (1: not split by tensor
    parallelism). ``prefill_width`` and ``decode_width`` are the dimensions per query head of scores and
    values together: 2 · head_dim, or those of the latent for multi-head latent attention (``latent``).
    ``window``: tokens that a query sees, None for all; older ones are not kept. ``chosen``: a query sees so
    many tokens at most, of all that are kept. An indexer chooses them, whose ``index_heads`` compare a key
    of ``index_width`` elements with each token before; both are 0 where an earlier layer chooses.
    ``stored`` is false where keys and values are those of an earlier layer: they are read, not kept again.
    """

    layers: int
    heads: int
    kv_heads: int
    cached: int
    prefill_width: int
    decode_width: int
    window: int | None = None
    chosen: int | None = None
    index_heads: int = 0
    index_width: int = 0
    latent: bool = False
    stored: bool = True

    @property
    def index_bytes(self) -> float:
        """Bytes of an indexer's key of one token in one layer: fp8 and scales, whatever the cache is in."""
        return self.index_width + 4 * ceil(self.index_width / _INDEX_BLOCK)

    def seen(self, length: float) -> float:
        """Pairs of a query and a key that it sees, over the first ``length`` tokens: ∫ min(c, most) dc."""
        return _pairs(length, self.chosen if self.window is None else self.window)

    def kept(self, length: float) -> float:
        """Tokens kept of a sequence of ``length`` tokens, in each layer."""
        return length if self.window is None else min(length, self.window)

    def mean_kept(self, start: float, end: float) -> float:
        """Mean of :meth:`kept` while a sequence grows from ``start`` to ``end`` tokens."""
        if end <= start:
            return self.kept(start)
        return (_pairs(end, self.window) - _pairs(start, self.window)) / (end - start)

    def mean_seen(self, start: float, end: float) -> float:
        """Mean number of tokens that a query sees while a sequence grows from ``start`` to ``end`` tokens."""
        if end <= start:
            return self.kept(start) if self.chosen is None else min(self.kept(start), self.chosen)
        return (self.seen(end) - self.seen(start)) / (end - start)

    def prefill_flops(self, start: float, end: float) -> float:
        """Operations to compute tokens ``start`` to ``end`` of a sequence: 2 per pair, head and dimension.

        With full attention that is 2·L·d·(end² - start²), causal (notes on the cost model, T_attP).
        """
        flops = 2.0 * self.heads * self.prefill_width * (self.seen(end) - self.seen(start))
        flops += self._index_flops * (_pairs(end, self.window) - _pairs(start, self.window))
        return self.layers * flops

    def decode_flops(self, seen: float, context: float) -> float:
        """Operations for one token that sees ``seen`` tokens of the ``context`` that is kept."""
        return self.layers * (2.0 * self.heads * self.decode_width * seen + self._index_flops * context)

    @property
    def _index_flops(self) -> float:
        return 2.0 * self.index_heads * self.index_width

    def copies(self, tensor_parallel: int) -> float:
        """How often all ranks together hold the cache: more than once where ranks outnumber its heads."""
        return max(1.0, tensor_parallel / self.kv_heads)


def _pairs(length: float, most: int | None) -> float:
    if most is None or length <= most:
        return length * length / 2
    return most * most / 2 + (length - most) * most
