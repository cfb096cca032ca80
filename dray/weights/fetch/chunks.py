"""Chunks: what is fetched, verified and marked ready as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dray.weights.source.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bytes [``start``, ``end``) of the manifest's file ``file``; ``number`` counts a model's chunks."""

    number: int
    file: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


class ChunkPlan:
    """All bytes of a model, each in exactly one chunk: files in the manifest's order, ascending offsets."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        size = manifest.chunk_bytes
        spans = [
            (number, start, min(start + size, file.size))
            for number, file in enumerate(manifest.files)
            for start in range(0, file.size, size)
        ]
        self.chunks: Sequence[Chunk] = [
            Chunk(n, file, start, end) for n, (file, start, end) in enumerate(spans)
        ]
        self._first: dict[int, int] = {}
        for chunk in reversed(self.chunks):
            self._first[chunk.file] = chunk.number

    @cached_property
    def order(self) -> list[int]:
        """Chunk numbers as an engine needs them: configuration, headers, then shard after shard."""
        weights = {n for n, file in enumerate(self.manifest.files) if file.is_weights}
        small = [chunk.number for chunk in self.chunks if chunk.file not in weights]
        heads = [self._first[file] for file in sorted(weights) if file in self._first]
        early = {*small, *heads}
        return [*small, *heads, *(chunk.number for chunk in self.chunks if chunk.number not in early)]

    def covering(self, file: int, start: int, end: int) -> range:
        """The numbers of the chunks that hold the bytes [``start``, ``end``) of a file."""
        if start >= end:
            return range(0)
        first, size = self._first[file], self.manifest.chunk_bytes
        return range(first + start // size, first + (end - 1) // size + 1)

    def expected(self, number: int) -> bytes | None:
        """The digest that the manifest gives for a chunk, where it gives any."""
        chunk = self.chunks[number]
        digests = self.manifest.files[chunk.file].digests
        at = 32 * (number - self._first[chunk.file])
        return digests[at : at + 32] if digests else None

    def place(self, number: int) -> str:
        """A chunk as errors call it."""
        chunk = self.chunks[number]
        name = self.manifest.files[chunk.file].name
        return f"{self.manifest.uri}/{name}, bytes {chunk.start:,} to {chunk.end:,}"
