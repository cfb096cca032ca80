"""The published manifest: what is written is what is read, and a false one is told from a true one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import save_file

from dray.errors import ConfigError, WeightsError
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.source.checkpoint import INDEX
from dray.weights.source.manifest import CHUNK_BYTES, PUBLISHED, Manifest, ModelFile
from dray.weights.source.publish import publish
from dray.weights.source.published import manifest_text, with_digests

pytestmark = pytest.mark.unit

NAMES = ["config.json", "empty.txt", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def folder(tmp_path: Path, rng: random.Random) -> Path:
    """A model of two chunks and a bit, and files that do not belong to it."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "README.md").write_text("not needed")
    data = np.frombuffer(rng.randbytes(2 * CHUNK_BYTES + 1000), np.uint8)
    save_file({"weights": data}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    """What a listing would say."""
    files = (ModelFile(name=name, size=(folder / name).stat().st_size, etag="e") for name in NAMES)
    return Manifest(uri="s3://b/m", files=tuple(files))


def test_what_is_published_is_what_every_chunk_is_held_against(folder: Path, manifest: Manifest) -> None:
    heard: list[int] = []
    published = publish(str(folder), progress=heard.append)
    assert published.path == str(folder / PUBLISHED)
    assert (published.files, published.size) == (4, manifest.size)
    assert sum(heard) == manifest.size
    plan = ChunkPlan(with_digests(manifest, (folder / PUBLISHED).read_bytes()))
    assert len(plan.chunks) == 2 + 3
    for chunk in plan.chunks:
        data = (folder / NAMES[chunk.file]).read_bytes()[chunk.start : chunk.end]
        assert plan.expected(chunk.number) == blake3(data).digest()
    assert not (folder / PUBLISHED).with_suffix(".new").exists()


def test_a_model_is_published_in_chunks_of_any_size(folder: Path, manifest: Manifest) -> None:
    publish(str(folder), chunk_bytes=1 << 20)
    plan = ChunkPlan(with_digests(manifest, (folder / PUBLISHED).read_bytes()))
    assert plan.manifest.chunk_bytes == 1 << 20
    for chunk in plan.chunks:
        data = (folder / NAMES[chunk.file]).read_bytes()[chunk.start : chunk.end]
        assert plan.expected(chunk.number) == blake3(data).digest()


def test_publishing_again_gives_the_same_and_needs_no_manifest_before(folder: Path) -> None:
    publish(str(folder))
    first = (folder / PUBLISHED).read_bytes()
    (folder / PUBLISHED).write_text("a false one")
    publish(str(folder))
    assert (folder / PUBLISHED).read_bytes() == first


def test_a_manifest_makes_another_key(folder: Path, manifest: Manifest) -> None:
    publish(str(folder))
    known = with_digests(manifest, (folder / PUBLISHED).read_bytes())
    assert known.key != manifest.key
    assert known.key == with_digests(manifest, (folder / PUBLISHED).read_bytes()).key


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.bin")


def _points_outside(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"weights": "../model.safetensors"}}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_truncate, r"model\.safetensors: truncated"),
        (_pickle, r"pickle files \(model\.bin\)"),
        (_points_outside, "is not a safetensors file of this folder"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
    ],
)
def test_a_damaged_model_is_not_published(folder: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(folder)
    with pytest.raises(ConfigError, match=says):
        publish(str(folder))
    assert not (folder / PUBLISHED).exists()


# -- false manifests --------------------------------------------------------------------------


@pytest.fixture
def sound() -> dict[str, Any]:
    return {"config.json": {"size": 3, "blake3": ["00" * 32]}}


def _says(text: bytes | str, size: int = 3) -> str:
    manifest = Manifest(uri="s3://b/m", files=(ModelFile(name="config.json", size=size, etag="e"),))
    with pytest.raises(WeightsError) as raised:
        with_digests(manifest, text if isinstance(text, bytes) else text.encode())
    told = str(raised.value)
    assert told.startswith(f"s3://b/m/{PUBLISHED}: "), told
    return told


def test_the_sound_one_is_taken(sound: dict[str, Any]) -> None:
    manifest = Manifest(uri="s3://b/m", files=(ModelFile(name="config.json", size=3, etag="e"),))
    assert with_digests(manifest, manifest_text(sound, 1 << 20).encode()).files[0].digests == bytes(32)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff", b"[]", b"3", b"null", b"{}", b"[" * 100_000, b'{"format": "dray-manifest-1"}',
        '{"format": "dray-manifest-1", "chunk_bytes": "many", "files": {}}',
        '{"format": "dray-manifest-1", "chunk_bytes": 1e999, "files": {}}',
        '{"format": "dray-manifest-1", "chunk_bytes": NaN, "files": {}}',
        '{"format": "dray-manifest-1", "chunk_bytes": 1048576, "files": []}',
        '{"format": "dray-manifest-1", "chunk_bytes": 1048576, "files": {"config.json": 3}}',
        '{"format": "dray-manifest-1", "chunk_bytes": 1048576, "files": {"config.json": {"size": 3}}}',
    ],
)  # fmt: skip
def test_what_is_no_manifest(text: bytes | str) -> None:
    assert "not a manifest; publish the model again" in _says(text)


@pytest.mark.parametrize("size", ["x", None, [3], float("inf"), float("nan")])
def test_a_size_that_is_none(sound: dict[str, Any], size: object) -> None:
    sound["config.json"]["size"] = size
    assert "not a manifest" in _says(manifest_text(sound, 1 << 20))


@pytest.mark.parametrize("digests", [None, 3, [3], ["xx" * 32], ["0" * 63]])
def test_checksums_that_are_none(sound: dict[str, Any], digests: object) -> None:
    sound["config.json"]["blake3"] = digests
    assert "not a manifest" in _says(manifest_text(sound, 1 << 20))


@pytest.mark.parametrize("chunk_bytes", [0, -1, 1, (64 << 10) - 1, (256 << 20) + 1, 2**70])
def test_chunks_of_a_size_that_no_node_could_hold(sound: dict[str, Any], chunk_bytes: int) -> None:
    assert "of another version of dray; publish the model again" in _says(manifest_text(sound, chunk_bytes))


def test_another_format(sound: dict[str, Any]) -> None:
    text = manifest_text(sound, 1 << 20).replace("dray-manifest-1", "dray-manifest-2")
    assert "of another version of dray" in _says(text)


def test_a_file_that_it_does_not_know(sound: dict[str, Any]) -> None:
    sound["other.json"] = sound.pop("config.json")
    assert "does not know config.json; publish the model again" in _says(manifest_text(sound, 1 << 20))


def test_a_file_of_another_size(sound: dict[str, Any]) -> None:
    assert "says 3 bytes for config.json, which has 4; publish" in _says(
        manifest_text(sound, 1 << 20), size=4
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_checksums_or_too_many(sound: dict[str, Any], count: int) -> None:
    size = (1 << 20) + 1
    sound["config.json"] = {"size": size, "blake3": ["00" * 32] * count}
    assert f"{count} checksums for 1,048,577 bytes of config.json" in _says(
        manifest_text(sound, 1 << 20), size
    )
