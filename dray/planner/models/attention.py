"""Attention of layers that are alike: what they keep per token, and what they compute with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``layers`` with the same attention.

    ``cached`` elements are kept per token and layer, for ``kv_heads`` heads (1: not split by tensor
    parallelism). ``prefill_width`` and ``decode_width`` are the dimensions per query head of scores and
    values together: 2 · head_dim, or those of the latent for multi-head latent attention. ``window``: tokens
    that a query sees, None for all.
    """

    layers: int
    heads: int
    kv_heads: int
    cached: int
    prefill_width: int
    decode_width: int
    window: int | None = None

    def seen(self, length: float) -> float:
        """Pairs of a query and a key that it sees, over the first ``length`` tokens: ∫ min(c, window) dc."""
        if self.window is None or length <= self.window:
            return length * length / 2
        return self.window * self.window / 2 + (length - self.window) * self.window

    def kept(self, length: float) -> float:
        """Tokens kept of a sequence of ``length`` tokens, in each layer."""
        return length if self.window is None else min(length, self.window)

    def mean_kept(self, start: float, end: float) -> float:
        """Mean of :meth:`kept` while a sequence grows from ``start`` to ``end`` tokens."""
        if end <= start:
            return self.kept(start)
        return (self.seen(end) - self.seen(start)) / (end - start)

    def prefill_flops(self, start: float, end: float) -> float:
        """Operations to compute tokens ``start`` to ``end`` of a sequence: 2 per pair, head and dimension.

        With full attention that is 2·L·d·(end² - start²), causal (notes on the cost model, T_attP).
        """
        return 2.0 * self.layers * self.heads * self.prefill_width * (self.seen(end) - self.seen(start))

    def decode_flops(self, context: float) -> float:
        """Operations for one token that sees ``context`` tokens."""
        return 2.0 * self.layers * self.heads * self.decode_width * context

    def copies(self, tensor_parallel: int) -> float:
        """How often all ranks together hold the cache: more than once where ranks outnumber its heads."""
        return max(1.0, tensor_parallel / self.kv_heads)
