"""What a model in an object store consists of, pinned: names, sizes, ETags and, where known, checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from dray.storage.addresses import HUB

PUBLISHED = "dray-manifest.json"

CHUNK_BYTES = 8 << 20
"""Bytes that are asked for, verified and marked as one: AWS recommends ranges of 8 or 16 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One object of the model; ``name`` says its place below the model's folder.

    ``size`` is in bytes; the ETag changes with the content. ``digests`` holds 32 bytes of BLAKE3 for each
    chunk of the file, or nothing where no published manifest says them; ``sha256`` is of the whole file, in
    hexadecimal, where the store gives it, and ``blob`` git's id of the file. ``url`` is where it is read when
    that is not below the model's URI. An empty ETag: something else pins the content.
    """

    name: str
    size: int
    etag: str
    digests: bytes = field(default=b"", repr=False)
    sha256: str = field(default="", repr=False)
    blob: str = field(default="", repr=False)
    url: str | None = field(default=None, repr=False)

    @property
    def state(self) -> str:
        """What changes with the file's bytes; empty where the origin says nothing of the kind."""
        return self.etag or self.sha256 or self.blob

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
        """The same for the same bytes of one address and their checksums (64 hexadecimal digits).

        A commit that changes other files of a hub's repository leaves it as it is.
        """
        return self._digest(self.chunk_bytes, [file.digests for file in self.files])

    @property
    def content(self) -> str:
        """Like :attr:`key`, but the same with a published manifest and without: what the model is."""
        return self._digest(CHUNK_BYTES, [b"" for _ in self.files])

    @property
    def former_content(self) -> str:
        """The form of earlier versions of dray: with the commit of a hub, and with published checksums."""
        digest = hashlib.sha256(f"{self.uri}\0{self.chunk_bytes}".encode())
        for file in self.files:
            digest.update(f"\n{file.name}\0{file.size}\0{file.etag}\0".encode() + file.digests)
        return digest.hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def _digest(self, chunk_bytes: int, digests: Sequence[bytes]) -> str:
        """Without the commit, where the hub says of each file what changes with its bytes."""
        of_hub = self.uri.startswith(HUB) and all(file.state for file in self.files)
        digest = hashlib.sha256(
            f"{self.uri.partition('@')[0] if of_hub else self.uri}\0{chunk_bytes}".encode()
        )
        for file, checksums in zip(self.files, digests, strict=True):
            digest.update(f"\n{file.name}\0{file.size}\0{file.state}\0".encode() + checksums)
        return digest.hexdigest()
