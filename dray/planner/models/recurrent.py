"""Recurrent layers that are alike: the state that they keep of each sequence, however long it is."""

from __future__ import annotations

from dataclasses import dataclass

from dray.planner.models.formats import KV_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """``layers`` with the same state: Mamba 2, Gated DeltaNet, Kimi Delta Attention, or a short convolution.

    ``convolution``: elements of the last inputs, in the model's own number format. ``state``: elements of the
    state proper, in ``state_format``; None for the model's own. Tensor parallelism splits both by each of
    ``heads``. ``operations``: for each token and layer, beside the projections, which are parameters.
    """

    layers: int
    heads: tuple[int, ...]
    convolution: int
    state: int
    operations: int
    state_format: str | None = None

    def layer_bytes(self, own: str) -> float:
        """Bytes of one sequence's state in one layer; ``own`` is the model's number format."""
        return self.convolution * KV_BYTES[own] + self.state * KV_BYTES[self.state_format or own]

    def bytes(self, own: str) -> float:
        """Bytes of one sequence's state in all layers."""
        return self.layers * self.layer_bytes(own)
