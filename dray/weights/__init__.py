"""Model weights: what they must be, where they come from, and where a node keeps them."""

from __future__ import annotations

from dray.weights.node.local import LocalModel
from dray.weights.source.checkpoint import check_checkpoint
from dray.weights.source.header import Header, TensorInfo, parse_header, read_header
from dray.weights.source.listing import check_remote, read_manifest
from dray.weights.source.manifest import Manifest

__all__ = [
    "Header",
    "LocalModel",
    "Manifest",
    "TensorInfo",
    "check_checkpoint",
    "check_remote",
    "parse_header",
    "read_header",
    "read_manifest",
]
