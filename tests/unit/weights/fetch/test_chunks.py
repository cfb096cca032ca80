"""Chunks: every byte of a model in exactly one, in an order that an engine can use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.source.manifest import Manifest, ModelFile

pytestmark = pytest.mark.unit


def _file(name: str, size: int) -> ModelFile:
    return ModelFile(name=name, size=size, etag=f'"{name}"')


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    """Files of any size, also empty ones, in any order; weights among them or not."""
    sizes = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=8))
    files = tuple(
        _file(f"{number}.{'safetensors' if weights else 'json'}", size)
        for number, (weights, size) in enumerate(sizes)
    )
    return ChunkPlan(Manifest(uri="s3://b/m", files=files, chunk_bytes=draw(st.integers(1, 20))))


@given(plan=plans())
def test_every_byte_is_in_exactly_one_chunk(plan: ChunkPlan) -> None:
    found = [(chunk.file, byte) for chunk in plan.chunks for byte in range(chunk.start, chunk.end)]
    files = enumerate(plan.manifest.files)
    assert found == [(number, byte) for number, file in files for byte in range(file.size)]


@given(plan=plans())
def test_chunks_are_numbered_and_none_is_empty_or_too_large(plan: ChunkPlan) -> None:
    assert [chunk.number for chunk in plan.chunks] == list(range(len(plan.chunks)))
    for chunk in plan.chunks:
        assert 0 < chunk.size <= plan.manifest.chunk_bytes
        assert chunk.start % plan.manifest.chunk_bytes == 0


@given(plan=plans())
def test_the_order_has_each_chunk_once(plan: ChunkPlan) -> None:
    assert sorted(plan.order) == list(range(len(plan.chunks)))


@given(plan=plans())
def test_configuration_comes_first_then_headers_then_shard_after_shard(plan: ChunkPlan) -> None:
    def stage(number: int) -> tuple[int, int]:
        chunk = plan.chunks[number]
        if not plan.manifest.files[chunk.file].is_weights:
            return 0, number
        return (1 if chunk.start == 0 else 2), number

    assert plan.order == sorted(plan.order, key=stage)


@given(plan=plans(), data=st.data())
def test_covering_names_the_chunks_that_hold_a_range(plan: ChunkPlan, data: st.DataObject) -> None:
    files = [number for number, file in enumerate(plan.manifest.files) if file.size]
    if not files:
        return
    file = data.draw(st.sampled_from(files))
    size = plan.manifest.files[file].size
    start = data.draw(st.integers(0, size))
    end = data.draw(st.integers(0, size))
    expected = [c.number for c in plan.chunks if c.file == file and max(c.start, start) < min(c.end, end)]
    assert list(plan.covering(file, start, end)) == expected


def test_nothing_is_needed_of_an_empty_file() -> None:
    plan = ChunkPlan(Manifest(uri="s3://b/m", files=(_file("a.safetensors", 0), _file("b.json", 3))))
    assert list(plan.covering(0, 0, 0)) == []
    assert plan.order == [0]


@given(plan=plans())
def test_each_chunk_has_its_own_digest(plan: ChunkPlan) -> None:
    digests: dict[int, bytes] = {}
    for chunk in plan.chunks:
        digests[chunk.file] = digests.get(chunk.file, b"") + chunk.number.to_bytes(32, "big")
    manifest = plan.manifest
    files = tuple(
        ModelFile(name=file.name, size=file.size, etag=file.etag, digests=digests.get(number, b""))
        for number, file in enumerate(manifest.files)
    )
    known = ChunkPlan(Manifest(uri=manifest.uri, files=files, chunk_bytes=manifest.chunk_bytes))
    for chunk in known.chunks:
        assert known.expected(chunk.number) == chunk.number.to_bytes(32, "big")
        assert plan.expected(chunk.number) is None


def test_a_chunk_is_called_by_file_and_range() -> None:
    files = (_file("config.json", 5), _file("m.safetensors", 2500))
    plan = ChunkPlan(Manifest(uri="s3://b/m", files=files, chunk_bytes=1000))
    assert plan.place(3) == "s3://b/m/m.safetensors, bytes 2,000 to 2,500"
