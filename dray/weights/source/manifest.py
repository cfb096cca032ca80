"""What a model in an object store consists of, pinned: names, sizes, ETags and, where known, checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

PUBLISHED = "dray-manifest.json"

CHUNK_BYTES = 8 << 20
"""Bytes that are asked for, verified and marked as one: AWS recommends ranges of 8 or 16 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One object of the model; ``name`` says its place below the model's folder.

    ``size`` is in bytes; the ETag changes with the content. ``digests`` holds 32 bytes of BLAKE3 for each
    chunk of the file, or nothing where no published manifest says them; ``sha256`` is of the whole file, in
    hexadecimal, where the store gives it. ``url`` is where it is read when that is not below the model's URI.
    An empty ETag: something else pins the content.
    """

    name: str
    size: int
    etag: str
    digests: bytes = field(default=b"", repr=False)
    sha256: str = field(default="", repr=False)
    url: str | None = field(default=None, repr=False)

    @property
    def is_weights(self) -> bool:
        """Whether it is a safetensors file of the top folder: those of modules are small, and read whole."""
        return self.name.endswith(".safetensors") and "/" not in self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one state of a model: what is read later is this, or nothing.

    ``chunk_bytes`` are asked for, verified and marked as one. ``leaves_mistrals``: the origin also has the
    model in Mistral's own format, with its tokenizer; of its ``consolidated*`` none are among the files.
    """

    uri: str
    files: tuple[ModelFile, ...]
    chunk_bytes: int = CHUNK_BYTES
    leaves_mistrals: bool = False

    @property
    def key(self) -> str:
        """The same for the same state of the same model, and for no other (64 hexadecimal digits)."""
        digest = hashlib.sha256(f"{self.uri}\0{self.chunk_bytes}".encode())
        for file in self.files:
            digest.update(f"\n{file.name}\0{file.size}\0{file.etag}\0".encode() + file.digests)
        return digest.hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)
