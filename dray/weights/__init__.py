"""Model weights: what is checked before anything is read from them."""

from __future__ import annotations

from dray.weights.checkpoint import check_checkpoint
from dray.weights.header import Header, TensorInfo, parse_header, read_header

__all__ = ["Header", "TensorInfo", "check_checkpoint", "parse_header", "read_header"]
