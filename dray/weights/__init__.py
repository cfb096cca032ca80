"""Model weights: what they must be, where they come from, and where a node keeps them."""

from __future__ import annotations

from dray.weights.cache import obtain
from dray.weights.checkpoint import check_checkpoint
from dray.weights.header import Header, TensorInfo, parse_header, read_header
from dray.weights.manifest import Manifest, check_remote, read_manifest

__all__ = [
    "Header",
    "Manifest",
    "TensorInfo",
    "check_checkpoint",
    "check_remote",
    "obtain",
    "parse_header",
    "read_header",
    "read_manifest",
]
