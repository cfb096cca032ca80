"""What lies in a model's folder on a node, for those without the manifest: loaders and users."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dray.errors import WeightsError
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.source.manifest import Manifest, ModelFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The model's URI, and its files as the manifest lists them."""

    uri: str
    files: tuple[ModelFile, ...]
    chunk_bytes: int

    def plan(self) -> ChunkPlan:
        """The chunks of its files."""
        return ChunkPlan(Manifest(uri=self.uri, files=self.files, chunk_bytes=self.chunk_bytes))


def write_description(path: Path, manifest: Manifest) -> None:
    """Describe ``manifest`` in a file that is there whole or not at all: other processes may read it."""
    files = [[file.name, file.size, file.etag] for file in manifest.files]
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps({"uri": manifest.uri, "chunk_bytes": manifest.chunk_bytes, "files": files}))
    new.replace(path)


def read_description(path: Path) -> Description:
    """What :func:`write_description` wrote.

    Raises:
        WeightsError: it is not that, or of another version of dray.
    """
    try:
        found = json.loads(path.read_bytes())
        files = tuple(ModelFile(name=name, size=size, etag=etag) for name, size, etag in found["files"])
        return Description(uri=found["uri"], files=files, chunk_bytes=int(found["chunk_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise WeightsError(f"{path}: does not describe a model; remove {path.parent}") from None
