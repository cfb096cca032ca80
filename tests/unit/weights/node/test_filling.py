"""A model while it is filled, on disk: what readers may believe, after a restart of the machine too."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from blake3 import blake3

from dray.engine.model_folder import EngineModel
from dray.engine.protocol import EngineSpec
from dray.errors import WeightsError
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.node import file_hashes, filling, local
from dray.weights.node import ready as ready_module
from dray.weights.node.cache import READY, ModelPaths, attached
from dray.weights.node.file_hashes import FileHashes
from dray.weights.node.filling import EngineFolder, distrust, lay_out, publish
from dray.weights.node.local import LocalModel
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.node.ready import ChunkMap
from dray.weights.source.manifest import Manifest, ModelFile

pytestmark = pytest.mark.unit

CHUNK = 1000
NAME = "model.safetensors"


class Filler:
    """The process that fills a model, step by step; it holds the model's lock."""

    def __init__(self, paths: ModelPaths, manifest: Manifest, contents: dict[str, bytes]) -> None:
        self.paths = paths
        self.plan = ChunkPlan(manifest)
        self._contents = contents
        self.lock = paths.fill_lock.open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        lay_out(paths.partial, manifest)
        self.ready = ChunkMap.made(paths.partial / READY, len(self.plan.chunks))

    @property
    def engine(self) -> EngineFolder:
        return EngineFolder(self.paths, self.plan, self.ready)

    def bring(self, *numbers: int) -> None:
        """These chunks, or all."""
        for number in numbers or range(len(self.plan.chunks)):
            chunk = self.plan.chunks[number]
            name = self.plan.manifest.files[chunk.file].name
            data = self._contents[name][chunk.start : chunk.end]
            with (self.paths.partial / name).open("r+b") as file:
                file.seek(chunk.start)
                file.write(data)
            self.ready.mark(number, blake3(data).digest())

    def publish(self) -> None:
        """All is there; under its final name then."""
        with FileHashes(self.paths, self.plan, self.ready) as hashes:
            publish(self.paths, self.plan, self.ready, hashes)

    def lose(self, number: int) -> None:
        """As after a power cut: the mark reached the disk, and its bytes did not."""
        chunk = self.plan.chunks[number]
        with (self.paths.partial / self.plan.manifest.files[chunk.file].name).open("r+b") as file:
            file.seek(chunk.start)
            file.write(bytes(chunk.size))


@pytest.fixture
def contents(rng: random.Random) -> dict[str, bytes]:
    data = rng.randbytes(4000)
    header = json.dumps({"w": {"dtype": "U8", "shape": [4000], "data_offsets": [0, 4000]}}).encode()
    return {"config.json": b"{}", NAME: len(header).to_bytes(8, "little") + header + data}


@pytest.fixture
def manifest(contents: dict[str, bytes]) -> Manifest:
    files = tuple(ModelFile(name=name, size=len(data), etag="e") for name, data in contents.items())
    return Manifest(uri="s3://b/m", files=files, chunk_bytes=CHUNK)


@pytest.fixture
def filler(
    manifest: Manifest, contents: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Filler]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with attached(manifest) as paths:
        made = Filler(paths, manifest, contents)
        yield made
        made.ready.close()
        made.lock.close()


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The machine is another boot's from now on."""

    def another() -> None:
        for module in (filling, ready_module):
            monkeypatch.setattr(module, "boot_id", lambda: "another")

    return another


class _LookedOftenError(Exception):
    pass


def _for_a_while(looks: int = 20) -> Callable[[], None]:
    left = iter(range(looks))

    def alive() -> None:
        if next(left, None) is None:
            raise _LookedOftenError

    return alive


def _begun(filler: Filler) -> None:
    filler.ready.begin()
    filler.bring()
    filler.engine.look()
    assert filler.paths.engine.is_dir()


def test_a_restart_makes_readers_wait_until_the_bytes_were_looked_at(
    filler: Filler, manifest: Manifest, contents: dict[str, bytes], restart: Callable[[], None]
) -> None:
    _begun(filler)
    filler.lose(3)
    restart()
    with LocalModel(manifest) as model:
        with pytest.raises(_LookedOftenError):
            model.wait_engine(_for_a_while())
        assert model.marks() == bytes(len(model.plan.chunks))
        weights = StreamedWeights.of(filler.paths.engine)
        assert weights.ready is not None
        with pytest.raises(WeightsError, match="nothing arrived"):
            weights.ready.wait(range(1, 2), what="w", stall=0.05)

        distrust(filler.ready, filler.plan, filler.paths)
        assert not filler.paths.engine.is_dir()
        with pytest.raises(_LookedOftenError):
            model.wait_engine(_for_a_while())
        filler.ready.begin()
        with pytest.raises(_LookedOftenError):
            model.wait_engine(_for_a_while())
        filler.engine.look()
        assert model.wait_engine(_for_a_while()) == filler.paths.engine
        assert [number for number, mark in enumerate(model.marks()) if not mark] == [3]
        with pytest.raises(WeightsError, match="nothing arrived"):
            weights.ready.wait(range(3, 4), what="w", stall=0.05)
        filler.bring(3)
        assert bytes(dict(weights.tensors())["w"].numpy()) == contents[NAME][-4000:]


def test_in_the_same_boot_what_is_marked_stays(filler: Filler) -> None:
    _begun(filler)
    distrust(filler.ready, filler.plan, filler.paths)
    assert filler.paths.engine.is_dir()
    assert 0 not in filler.ready.marks


def test_a_new_map_beside_an_old_engine_folder_makes_it_anew(filler: Filler) -> None:
    """The map itself may not have reached the disk."""
    filler.paths.engine.mkdir()
    distrust(filler.ready, filler.plan, filler.paths)
    assert not filler.paths.engine.exists()


def test_what_was_published_is_believed_after_a_restart(
    filler: Filler, manifest: Manifest, contents: dict[str, bytes], restart: Callable[[], None]
) -> None:
    _begun(filler)
    filler.publish()
    restart()
    with LocalModel(manifest) as model:
        assert model.wait_engine(_for_a_while()) == filler.paths.engine
        assert 0 not in model.marks()
        weights = StreamedWeights.of(filler.paths.engine)
        assert bytes(dict(weights.tensors())["w"].numpy()) == contents[NAME][-4000:]


def test_a_failure_before_the_bytes_were_looked_at_is_told(
    filler: Filler, manifest: Manifest, restart: Callable[[], None]
) -> None:
    _begun(filler)
    restart()
    filler.ready.forget()
    filler.ready.fail("the disk is broken")
    with LocalModel(manifest) as model, pytest.raises(WeightsError, match="the disk is broken"):
        model.wait_engine(_for_a_while(1000))


def test_who_loaded_what_failed_its_checksum_takes_no_work_though_it_was_fetched_anew(
    filler: Filler, manifest: Manifest, contents: dict[str, bytes]
) -> None:
    """The one who fills tries again by itself, and the failure is gone before the load ends."""
    verified = replace(manifest.files[1], sha256=hashlib.sha256(contents[NAME]).hexdigest())
    filler.plan = ChunkPlan(replace(manifest, files=(manifest.files[0], verified)))
    with (
        pytest.raises(WeightsError, match="what was loaded of it was damaged"),
        _engine_model(filler) as model,
    ):
        contents[NAME] = contents[NAME][:-1] + bytes([contents[NAME][-1] ^ 1])
        _begun(filler)
        loaded = dict(StreamedWeights.of(Path(model.arguments()["model"])).tensors())
        with pytest.raises(WeightsError, match="its SHA-256 is not the one that the hub says"):
            filler.publish()
        contents[NAME] = contents[NAME][:-1] + bytes([contents[NAME][-1] ^ 1])
        _begun(filler)
        filler.publish()
        assert len(loaded) == 1
    with _engine_model(filler) as model:  # and the next one does
        assert model.arguments()["model"] == str(filler.paths.engine)


@pytest.mark.parametrize("given", [{}, {"load_format": "dray"}])
def test_what_torchao_stored_is_left_to_vllms_own_loader(filler: Filler, given: dict[str, str]) -> None:
    with _engine_model(filler, given) as model:
        _begun(filler)
        config = '{"quantization_config": {"quant_method": "torchao"}}'
        (filler.paths.engine / "config.json").write_text(config)
        filler.publish()
        if given:  # the load refuses it
            assert model.arguments() == {"model": str(filler.paths.engine), "load_format": "dray"}
        else:
            assert model.arguments() == {"model": str(filler.paths.whole)}


def _engine_model(filler: Filler, arguments: dict[str, str] | None = None) -> EngineModel:
    spec = SimpleNamespace(
        model="m",
        weights=filler.plan.manifest,
        arguments=arguments or {},
        objects=None,
        weights_patience=60.0,
    )
    return EngineModel(cast("EngineSpec", spec))


def test_a_fetch_that_only_ended_takes_nothing_back(filler: Filler, manifest: Manifest) -> None:
    filler.ready.begin()
    filler.bring(0, 1)
    filler.engine.look()
    with LocalModel(manifest, patience=60) as model:
        model.wait_engine(_for_a_while())
        filler.ready.fail("the store was away")
        filler.ready.begin()
        filler.bring()
        filler.publish()
        assert model.wait_whole(_for_a_while()) == filler.paths.whole


def test_a_map_that_another_thread_drops_between_two_looks_is_looked_at(
    filler: Filler, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers' threads, the agent and the load look at it at once, and any may find that it was removed."""
    held: list[ChunkMap | None] = [None]

    def look(model: LocalModel) -> ChunkMap | None:
        found, held[0] = held[0], None
        return found

    def hold(model: LocalModel, found: ChunkMap | None) -> None:
        held[0] = found

    _begun(filler)
    monkeypatch.setattr(LocalModel, "_map", property(look, hold), raising=False)
    with LocalModel(manifest, patience=60) as model:
        held[0] = model.ready
        assert model.marks() == bytes([1]) * len(model.plan.chunks)
        held[0] = model.ready
        assert model.failure() is None
        held[0] = model.ready  # for close


def test_publishing_may_take_longer_than_a_stall(
    filler: Filler, manifest: Manifest, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read and each sync takes a while, and all of them longer than readers wait for nothing."""
    files = [replace(f, sha256=hashlib.sha256(contents[f.name]).hexdigest()) for f in manifest.files]
    filler.plan = ChunkPlan(replace(manifest, files=tuple(files)))
    _begun(filler)
    beat, beats = filler.ready.beat, []

    def slow() -> None:
        time.sleep(0.02)
        beat()
        beats.append(time.monotonic())

    monkeypatch.setattr(file_hashes, "_PIECE", 100)
    stall_seconds = 0.4
    monkeypatch.setattr(local, "STALL_SECONDS", stall_seconds)
    monkeypatch.setattr(filler.ready, "beat", slow)
    with LocalModel(manifest, patience=60) as model, ThreadPoolExecutor(1) as pool:
        published = pool.submit(filler.publish)
        assert model.wait_whole() == filler.paths.whole
        published.result()
    assert beats[-1] - beats[0] > 2 * stall_seconds


def test_a_publisher_of_which_nothing_is_heard_is_given_up(
    filler: Filler, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(filler)
    monkeypatch.setattr(local, "STALL_SECONDS", 0.1)
    with LocalModel(manifest, patience=60) as model, pytest.raises(WeightsError, match="nothing arrived"):
        model.wait_whole()


def test_looking_at_the_bytes_after_a_restart_is_progress(
    filler: Filler, restart: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(filler)
    before = filler.ready.signs
    restart()
    distrust(filler.ready, filler.plan, filler.paths)
    assert filler.ready.signs[1] == before[1] + len(filler.plan.chunks)


def test_all_is_on_disk_before_the_model_has_its_final_name(
    filler: Filler, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(filler)
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        assert filler.paths.partial.is_dir() or synced[-1] == filler.paths.place.root

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        filler.publish()
    for folder in (filler.paths.engine, filler.paths.partial):
        assert {folder, *(folder / name for name in contents)} <= set(synced)
    assert synced[-1] == filler.paths.place.root
    assert filler.paths.whole.is_dir()
