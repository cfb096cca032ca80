"""What the process that downloads a model does to its folders, from the first file to the final name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from dray.errors import WeightsError
from dray.storage.files import sync
from dray.weights.fetch.chunks import Chunk, ChunkPlan
from dray.weights.node.cache import DESCRIPTION, ModelPaths
from dray.weights.node.description import write_description
from dray.weights.node.file_hashes import FileHashes
from dray.weights.node.ready import ChunkMap, boot_id
from dray.weights.source.checkpoint import check_checkpoint
from dray.weights.source.header import HEADER_LIMIT, read_header
from dray.weights.source.manifest import Manifest


def lay_out(folder: Path, manifest: Manifest) -> set[int]:
    """All files in their sizes, as holes, and what the model is.

    Returns the numbers of the files that were not there in their sizes.
    """
    changed = set()
    for number, file in enumerate(manifest.files):
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / file.name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size != file.size:
                os.ftruncate(descriptor, file.size)
                changed.add(number)
        finally:
            os.close(descriptor)
    write_description(folder / DESCRIPTION, manifest)
    return changed


def distrust(ready: ChunkMap, plan: ChunkPlan, paths: ModelPaths) -> None:
    """After a restart of the machine, keep only the marks of chunks whose bytes are what the map says.

    The engine's folder is made again: no record says which of its bytes reached the disk.
    """
    if ready.boot == boot_id():
        return
    if paths.engine.is_dir():
        shutil.rmtree(paths.engine)
    for number, mark in enumerate(ready.noted):
        chunk = plan.chunks[number]
        path = paths.partial / plan.manifest.files[chunk.file].name
        if mark and _digest(path, chunk) != ready.digest(number):
            ready.unmark(number)
        ready.beat()


def _digest(path: Path, chunk: Chunk) -> bytes:
    with path.open("rb") as file:
        file.seek(chunk.start)
        return blake3(file.read(chunk.size)).digest()


class EngineFolder:
    """Makes the engine's folder as soon as all it takes is ready."""

    def __init__(self, paths: ModelPaths, plan: ChunkPlan, ready: ChunkMap) -> None:
        self._paths = paths
        self._plan = plan
        self._ready = ready
        self._small = [c.number for c in plan.chunks if not plan.manifest.files[c.file].is_weights]

    def look(self, chunk: Chunk | None = None) -> None:
        """Make it, if it can be made and is not there."""
        if self._paths.engine.is_dir() or not self._ready.ready(self._small):
            return
        lengths = {}
        for number, file in enumerate(self._plan.manifest.files):
            if file.is_weights:
                length = self._header_bytes(number)
                if length is None:
                    return
                lengths[file.name] = length
        with _doubted(self._plan, self._ready):
            _check(self._paths.partial, self._plan.manifest)
        _make_engine_folder(self._paths, self._plan.manifest, lengths)

    def _header_bytes(self, file: int) -> int | None:
        """Length of a file's header with its count, None while not all of it is there."""
        entry = self._plan.manifest.files[file]
        if not self._ready.ready(self._plan.covering(file, 0, min(8, entry.size))):
            return None
        with (self._paths.partial / entry.name).open("rb") as stream:
            length = 8 + min(int.from_bytes(stream.read(8), "little"), HEADER_LIMIT)
        length = min(length, entry.size)
        return length if self._ready.ready(self._plan.covering(file, 0, length)) else None


def _make_engine_folder(paths: ModelPaths, manifest: Manifest, lengths: dict[str, int]) -> None:
    fresh = paths.engine.with_suffix(".engine-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for file in manifest.files:
        source = paths.partial / file.name
        (fresh / file.name).parent.mkdir(parents=True, exist_ok=True)
        if file.is_weights:
            with source.open("rb") as stream:
                (fresh / file.name).write_bytes(stream.read(lengths[file.name]))
        else:
            shutil.copyfile(source, fresh / file.name)
    fresh.rename(paths.engine)


def _check(folder: Path, manifest: Manifest) -> None:
    """The headers of all safetensors files, and the index.

    Raises:
        WeightsError: names file and tensor.
    """
    check_checkpoint(folder)
    for file in manifest.files:
        if file.name.endswith(".safetensors") and not file.is_weights:  # a module's
            read_header(folder / file.name)


def publish(paths: ModelPaths, plan: ChunkPlan, ready: ChunkMap, hashes: FileHashes) -> None:
    """Give the model its final name, once all is verified and a power cut could take nothing back."""
    with _doubted(plan, ready):
        _check(paths.partial, plan.manifest)
        try:
            hashes.refuse_others()
        except WeightsError:
            shutil.rmtree(paths.engine, ignore_errors=True)
            raise
    for folder in (paths.engine, paths.partial):  # the engine's too: it is not made again for a whole model
        for path in folder.rglob("*"):
            sync(path)
            ready.beat()
        sync(folder)
    paths.partial.rename(paths.whole)
    sync(paths.place.root)


@contextmanager
def _doubted(plan: ChunkPlan, ready: ChunkMap) -> Iterator[None]:
    """If the model that came is wrong, the next try reads chunks without a checksum of their own again."""
    try:
        yield
    except WeightsError:
        for chunk in plan.chunks:
            if not plan.manifest.files[chunk.file].digests:
                ready.unmark(chunk.number)
        raise
