"""Row 12: bytes that are wrong."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.weights import LocalModel, Manifest, read_manifest
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.origin import Address
from dray.weights.fetch.schedule import Turn
from dray.weights.source.manifest import PUBLISHED
from dray.weights.source.publish import publish
from tests.integration.weights.bad_inputs.support import (
    CHUNK,
    FIRST,
    SECOND,
    URI,
    Limiter,
    Wanted,
    Web,
    Webs,
    arrives,
    is_refused,
)
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def published(server: EmulatorProcess, origin: Path) -> Manifest:
    publish(str(origin), chunk_bytes=CHUNK)
    manifest = read_manifest(URI, server.options)
    assert all(file.digests for file in manifest.files if file.size)
    return manifest


def test_row_12_flipped_bits_are_asked_for_again(published: Manifest, origin: Path) -> None:
    """A server of its own, whose dice are known: two of its answers have a wrong bit."""
    generator = random.Random(0)  # the emulator's own seed
    dice = [generator.random() for _ in range(len(ChunkPlan(published).chunks) + 2)]
    share = sorted(dice)[1] + 1e-9
    server = EmulatorProcess(origin.parents[2])
    try:
        server.behave(corrupt_share=share)
        model = arrives(published, server.options, origin)
    finally:
        server.stop()
    assert model.outcome is not None
    assert model.outcome.faults.keys() == {"corrupt"}
    assert model.outcome.faults["corrupt"] >= 2


def test_row_12_a_store_whose_bytes_are_all_wrong(
    published: Manifest, server: EmulatorProcess, cache: Path
) -> None:
    server.behave(corrupt_share=1.0)
    says = r"s3://bucket/models/m/.*, bytes [\d,]+ to [\d,]+: came 3 times with another checksum than"
    is_refused(published, server.options, cache, says)


@pytest.mark.parametrize("at", [0, 3_000_000, -1])
def test_row_12_one_bit_wrong_at_rest_is_told_with_file_and_range(
    at: int, published: Manifest, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    """Also where neither size nor time of the object changed."""
    path = origin / SECOND
    stamp, data = path.stat().st_mtime_ns, bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    os.utime(path, ns=(stamp, stamp))
    start = (at % len(data)) // CHUNK * CHUNK
    says = rf"/model-2\.safetensors, bytes {start:,} to {min(start + CHUNK, len(data)):,}: came 3 times"
    is_refused(published, server.options, cache, says)


def test_row_12_a_manifest_of_another_state(server: EmulatorProcess, origin: Path) -> None:
    (origin / PUBLISHED).write_text("{}")
    with pytest.raises(WeightsError, match=rf"s3://bucket/models/m/{PUBLISHED}: not a manifest"):
        read_manifest(URI, server.options)


def test_row_12_a_hub_whose_bytes_were_wrong_once_is_read_again(
    server: EmulatorProcess, origin: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says a checksum of whole files alone, so nothing of what came is to be believed."""
    repository = server.root / "hub/org/m"
    repository.mkdir(parents=True, exist_ok=True)
    for file in origin.iterdir():
        (repository / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(cache / "nobody"))
    manifest = read_manifest("hf://org/m")
    server.behave(corrupt_share=1.0)
    with LocalModel(manifest) as model, pytest.raises(WeightsError, match=r"SHA-256|not valid|safetensors"):
        model.wait_whole()
    assert not (cache / manifest.key).exists()
    server.behave()
    time.sleep(0.2)
    with LocalModel(manifest) as model:
        folder = model.wait_whole()
        assert all((folder / name).read_bytes() == (origin / name).read_bytes() for name in (FIRST, SECOND))


class OnePeer:
    """Another node that says it has everything."""

    def __init__(self, web: Web, chunks: int) -> None:
        self._web, self._chunks = web, chunks

    def turn(self, chunk: int) -> Turn:
        return Turn(1, "peer")

    def look(self) -> Mapping[str, bytes]:
        return {"peer": b"\1" * self._chunks}

    def address(self, peer: str, file: str) -> Address:
        return Address(url=f"{self._web.uri}/{file}", headers={})


def test_row_12_a_poisoned_peer_is_quarantined_and_the_origin_asked(
    published: Manifest, server: EmulatorProcess, origin: Path, web: Webs, limited: Limiter
) -> None:
    limited(patience=0.2)
    server.behave()

    def poisoned(wanted: Wanted) -> None:
        wanted.say(206, wanted.data[:-1] + bytes([wanted.data[-1] ^ 1]))

    liar = web(poisoned)
    liar.files = {file.name: (origin / file.name).read_bytes() for file in published.files}
    with LocalModel(
        published, server.options, peers=OnePeer(liar, len(ChunkPlan(published).chunks))
    ) as model:
        folder = model.wait_whole()
        assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert model.outcome is not None
    assert 1 <= model.outcome.faults["corrupt"] <= FetchLimits().peer_window
    assert liar.requests <= FetchLimits().peer_window
    assert sum(server.served().values()) >= sum(file.size for file in published.files if file.is_weights)
