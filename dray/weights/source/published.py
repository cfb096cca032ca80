"""The published manifest: checksums of a model's chunks, kept beside the model as ``dray-manifest.json``.

The user who publishes a model writes it once. Every node then verifies each chunk against it before a byte
counts, wherever the chunk came from: the origin, a mirror, a proxy, or another node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blake3 import blake3

from dray.errors import WeightsError
from dray.weights.source.manifest import PUBLISHED, Manifest

_FORMAT = "dray-manifest-1"
_SMALLEST, _LARGEST = 64 << 10, 256 << 20  # bytes of a chunk: it is held in memory while it is judged


def manifest_text(files: Mapping[str, Mapping[str, Any]], chunk_bytes: int) -> str:
    """A published manifest; for each file its ``size`` and, in ``blake3``, a hexadecimal digest a chunk."""
    content = {"format": _FORMAT, "chunk_bytes": chunk_bytes, "files": dict(files)}
    return json.dumps({**content, "seal": _seal(content)}, indent=1) + "\n"


def _seal(content: Mapping[str, Any]) -> str:
    """Tells a damaged manifest from a damaged model; it does not keep a user from writing another one."""
    canonical = {name: value for name, value in content.items() if name != "seal"}
    return blake3(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_digests(manifest: Manifest, text: bytes) -> Manifest:
    """The manifest with the checksums that ``text``, a published manifest, says.

    Raises:
        WeightsError: it is none, or of another state of the model; names the file.
    """
    place = f"{manifest.uri}/{PUBLISHED}"
    chunk_bytes, said = _parsed(text, place)
    files = []
    for file in manifest.files:
        entry = said.get(file.name)
        if entry is None:
            raise WeightsError(f"{place}: does not know {file.name}; publish the model again")
        size, digests = entry
        if size != file.size:
            raise WeightsError(
                f"{place}: says {size:,} bytes for {file.name}, which has {file.size:,}; "
                "publish the model again"
            )
        files.append(replace(file, digests=digests))
    return replace(manifest, files=tuple(files), chunk_bytes=chunk_bytes)


def _parsed(text: bytes, place: str) -> tuple[int, Mapping[str, tuple[int, bytes]]]:
    try:
        found = json.loads(text)
        chunk_bytes = int(found["chunk_bytes"])
        if found["format"] != _FORMAT or not _SMALLEST <= chunk_bytes <= _LARGEST:
            raise WeightsError(f"{place}: of another version of dray; publish the model again")
        if found["seal"] != _seal(found):
            raise ValueError
        entries = {
            name: (int(file["size"]), bytes.fromhex("".join(file["blake3"])))
            for name, file in found["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise WeightsError(f"{place}: not a manifest; publish the model again") from None
    for name, (size, digests) in entries.items():
        if len(digests) != 32 * -(-size // chunk_bytes):
            raise WeightsError(f"{place}: {len(digests) // 32} checksums for {size:,} bytes of {name}")
    return chunk_bytes, entries
