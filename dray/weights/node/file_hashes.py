"""The SHA-256 of files of which a hub says it: each is read as soon as all of it is there.

The engine of a model takes no work before that. So the files are read while others still arrive, several at
once, and at low priority: the fetch goes first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from dray.errors import WeightsError
from dray.weights.fetch.chunks import Chunk, ChunkPlan
from dray.weights.node.cache import ModelPaths
from dray.weights.node.ready import ChunkMap
from dray.weights.source.content import background_threads

_PIECE = 8 << 20  # bytes that are hashed at once, by each thread


class FileHashes:
    """Made before the fetch, and told of each chunk. Its threads have ended when the block has."""

    def __init__(self, paths: ModelPaths, plan: ChunkPlan, ready: ChunkMap) -> None:
        self._paths = paths
        self._manifest = plan.manifest
        self._ready = ready
        self._stopped = False
        self._threads = background_threads("dray-sha256")
        files = plan.manifest.files
        self._wanted = [number for number, file in enumerate(files) if file.sha256 and not file.digests]
        marks = ready.marks
        self._left = Counter(chunk.file for chunk in plan.chunks if not marks[chunk.number])
        self._found: dict[int, Future[str]] = {}
        for number in self._wanted:
            if not self._left[number]:
                self._begin(number)

    def __enter__(self) -> FileHashes:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped = True
        self._threads.shutdown(cancel_futures=True)

    def look(self, chunk: Chunk) -> None:
        """This chunk is there; called once for each that was not at the start."""
        self._left[chunk.file] -= 1
        if not self._left[chunk.file] and chunk.file in self._wanted:
            self._begin(chunk.file)

    def refuse_others(self) -> None:
        """Wait for all files, which are whole.

        Raises:
            WeightsError: one is not what the hub says; names it.
        """
        for number in self._wanted:
            file = self._manifest.files[number]
            if self._found[number].result() != file.sha256:
                raise WeightsError(
                    f"{self._manifest.uri}/{file.name}: its SHA-256 is not the one that the hub says"
                )

    def _begin(self, number: int) -> None:
        path = self._paths.partial / self._manifest.files[number].name
        self._found[number] = self._threads.submit(_sha256, path, self._beat)

    def _beat(self) -> None:
        if self._stopped:
            raise WeightsError(f"{self._paths.partial}: it was not read to its end")
        self._ready.beat()


def _sha256(path: Path, beat: Callable[[], None]) -> str:
    """The SHA-256 of a file in hexadecimal; ``beat`` is called for each piece."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(piece):
            digest.update(piece[:count])
            beat()
    return digest.hexdigest()
