"""Files of a hub are verified while others arrive, as strictly as after all of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.weights.fetch.chunks import Chunk, ChunkPlan
from dray.weights.node import file_hashes
from dray.weights.node.cache import READY, ModelPaths, attached
from dray.weights.node.file_hashes import FileHashes
from dray.weights.node.filling import lay_out
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.node.ready import ChunkMap
from dray.weights.source.manifest import Manifest, ModelFile

pytestmark = pytest.mark.unit

CHUNK = 1000
BYTES = {"a.safetensors": b"a" * 2500, "b.safetensors": b"b" * 1000, "c.safetensors": b"c", "empty": b""}
MANIFEST = Manifest(
    uri="hf://org/name",
    files=tuple(
        ModelFile(name=name, size=len(data), etag="e", sha256=hashlib.sha256(data).hexdigest())
        for name, data in BYTES.items()
    ),
    chunk_bytes=CHUNK,
)
PLAN = ChunkPlan(MANIFEST)
Read = Callable[[Path, Callable[[], None]], str]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelPaths]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with attached(MANIFEST) as paths:
        lay_out(paths.partial, MANIFEST)
        yield paths


@pytest.fixture
def ready(paths: ModelPaths) -> Iterator[ChunkMap]:
    ready = ChunkMap.made(paths.partial / READY, len(PLAN.chunks))
    ready.begin()
    yield ready
    ready.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, in order."""
    names: list[str] = []
    real: Read = file_hashes._sha256

    def noted(path: Path, beat: Callable[[], None]) -> str:
        names.append(path.name)
        return real(path, beat)

    monkeypatch.setattr(file_hashes, "_sha256", noted)
    return names


def _bring(paths: ModelPaths, ready: ChunkMap, chunk: Chunk, data: bytes | None = None) -> Chunk:
    name = MANIFEST.files[chunk.file].name
    with (paths.partial / name).open("r+b") as file:
        file.seek(chunk.start)
        file.write(data or BYTES[name][chunk.start : chunk.end])
    ready.mark(chunk.number, bytes(32))
    return chunk


def test_each_file_is_read_once_and_as_soon_as_it_is_whole(
    paths: ModelPaths, ready: ChunkMap, read: list[str]
) -> None:
    *others, last = PLAN.chunks
    _bring(paths, ready, others[0])  # an earlier fetch brought it
    with FileHashes(paths, PLAN, ready) as hashes:
        for chunk in others[1:]:
            hashes.look(_bring(paths, ready, chunk))
        for number in (0, 1, 3):
            hashes._found[number].result(10)
        assert sorted(read) == ["a.safetensors", "b.safetensors", "empty"]
        hashes.look(_bring(paths, ready, last))
        hashes.refuse_others()
    assert sorted(read) == sorted(BYTES)


def test_what_an_earlier_fetch_brought_is_read_too(
    paths: ModelPaths, ready: ChunkMap, read: list[str]
) -> None:
    for chunk in PLAN.chunks:
        _bring(paths, ready, chunk)
    with FileHashes(paths, PLAN, ready) as hashes:
        hashes.refuse_others()
    assert sorted(read) == sorted(BYTES)


@pytest.mark.parametrize("wrong", range(len(PLAN.chunks)))
def test_a_wrong_byte_in_any_chunk_is_found(paths: ModelPaths, ready: ChunkMap, wrong: int) -> None:
    with FileHashes(paths, PLAN, ready) as hashes:
        for chunk in PLAN.chunks:
            hashes.look(_bring(paths, ready, chunk, b"x" if chunk.number == wrong else None))
        name = MANIFEST.files[PLAN.chunks[wrong].file].name
        with pytest.raises(WeightsError, match=f"{name}: its SHA-256 is not the one that the hub says"):
            hashes.refuse_others()


def test_a_fetch_that_ends_early_waits_for_no_file(
    paths: ModelPaths, ready: ChunkMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_hashes, "_PIECE", 1)
    reads, go_on = threading.Event(), threading.Event()

    def beat() -> None:
        reads.set()
        go_on.wait(10)

    monkeypatch.setattr(ready, "beat", beat)
    for chunk in PLAN.chunks:
        _bring(paths, ready, chunk)
    with FileHashes(paths, PLAN, ready) as hashes:
        reads.wait(10)
        threading.Timer(0.1, go_on.set).start()
    assert isinstance(hashes._found[0].exception(), WeightsError)
