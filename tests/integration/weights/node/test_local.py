"""Models in an object store: judged before they are read, read once, and never served from wrong bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dray.errors import ConfigError, EngineStartError, WeightsError
from dray.storage import ObjectStoreOptions
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.node import filling, ready
from dray.weights.node.cache import READY
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.node.ready import ChunkMap
from dray.weights.source.checkpoint import INDEX
from dray.weights.source.manifest import Manifest
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration

URI = "s3://bucket/models/m"
FIRST, SECOND = "model-1.safetensors", "model-2.safetensors"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmulatorProcess, Path]]:
    root = tmp_path_factory.mktemp("origin")
    (root / "bucket/models").mkdir(parents=True)
    server = EmulatorProcess(root)
    yield server, root / "bucket/models/m"
    server.stop()


@pytest.fixture
def server(running: tuple[EmulatorProcess, Path]) -> EmulatorProcess:
    running[0].behave()
    return running[0]


@pytest.fixture
def origin(running: tuple[EmulatorProcess, Path], rng: object) -> Iterator[Path]:
    """A model of two shards, 20 MB: several ranges."""
    folder = running[1]
    (folder / "onnx").mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("not needed")
    (folder / "onnx/model.safetensors").write_text("elsewhere")
    (folder / "consolidated.safetensors").write_text("a second copy, and a broken one")
    numbers = np.random.default_rng(7)
    save_file({"embed": numbers.random((1500, 1000), np.float32)}, folder / FIRST)
    save_file({"head": numbers.random((3500, 1000), np.float32)}, folder / SECOND)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"embed": FIRST, "head": SECOND}}))
    yield folder
    for file in sorted(folder.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    folder.rmdir()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def manifest(server: EmulatorProcess, origin: Path) -> Manifest:
    return read_manifest(URI, server.options)


def obtain(manifest: Manifest, options: ObjectStoreOptions) -> Path:
    """The complete model's folder."""
    with LocalModel(manifest, options) as model:
        return model.wait_whole()


def _weights(server: EmulatorProcess) -> dict[str, int]:
    return {name.rsplit("/", 1)[-1]: size for name, size in server.served().items() if "safetensors" in name}


def test_what_counts_is_fetched_once_and_is_the_same(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path
) -> None:
    assert [file.name for file in manifest.files] == ["config.json", FIRST, SECOND, INDEX, "tokenizer.json"]
    check_remote(manifest, server.options)
    assert sum(_weights(server).values()) < 5e6  # headers, and what came with them
    server.behave()
    folder = obtain(manifest, server.options)
    found = {file.name for file in folder.iterdir() if not file.name.startswith(".dray")}
    assert found == {file.name for file in manifest.files}
    assert all(
        (folder / file.name).read_bytes() == (origin / file.name).read_bytes() for file in manifest.files
    )
    assert obtain(manifest, server.options) == folder
    assert sum(server.served().values()) == manifest.size
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {
        manifest.key,
        f"{manifest.key}.engine",
    }


def test_replicas_that_start_together_share_one_read(server: EmulatorProcess, manifest: Manifest) -> None:
    server.behave()
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: obtain(manifest, server.options), range(4)))
    assert len(folders) == 1
    assert sum(server.served().values()) == manifest.size


SMALL_CHUNKS = 1_000_000


def _in_small_chunks(manifest: Manifest) -> Manifest:
    return replace(manifest, chunk_bytes=SMALL_CHUNKS)


@pytest.mark.parametrize(
    "behaviour", ["busy_share", "cut_share", "short_share", "whole_share", "elsewhere_share"]
)
def test_a_bad_network_is_lived_with(
    behaviour: str, server: EmulatorProcess, origin: Path, manifest: Manifest
) -> None:
    server.behave(**{behaviour: 0.2})
    folder = obtain(_in_small_chunks(manifest), server.options)
    assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()


KILLED = """
import sys
from dray.storage import ObjectStoreOptions
from dray.weights import LocalModel, read_manifest
keys = dict(access_key_id="k", secret_access_key="s")
options = ObjectStoreOptions(endpoint=sys.argv[1], region="r", allow_http=True, **keys)
LocalModel(read_manifest("s3://bucket/models/m", options), options).wait_whole()
"""


def test_a_killed_fetch_is_gone_on_with(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path
) -> None:
    server.behave(node_rate=8e6)
    process = subprocess.Popen([sys.executable, "-c", KILLED, server.url])
    done = cache / f"{manifest.key}.partial" / READY
    deadline = time.monotonic() + 30
    while not (done.is_file() and ChunkMap(done, writable=False).marks.count(1) >= 4):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = ChunkMap(done, writable=False).marks
    server.behave()
    folder = obtain(manifest, server.options)
    left = sum(chunk.size for chunk in ChunkPlan(manifest).chunks if not finished[chunk.number])
    assert sum(server.served().values()) == left < manifest.size
    assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()


def test_a_folder_that_is_removed_meanwhile_is_made_again(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path
) -> None:
    """As systemd does in /dev/shm when the user logs out, while the job runs as a service."""
    manifest = _in_small_chunks(manifest)
    server.behave(node_rate=8e6)
    with (
        LocalModel(manifest, server.options) as driver,
        LocalModel(manifest, server.options, patience=10) as replica,
    ):
        loader = StreamedWeights.of(driver.wait_engine())
        while driver.marks().count(1) < 4:
            time.sleep(0.02)
        shutil.rmtree(cache, ignore_errors=True)
        with pytest.raises(EngineStartError, match="was removed from outside"):
            list(loader.tensors())
        server.behave()
        for model in (replica, driver):
            folder = model.wait_whole()
            assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
        shutil.rmtree(cache, ignore_errors=True)  # once it is whole, too; dray may tidy the rest beside it
        assert driver.failure() is not None
        assert driver.marks().count(1) == 0
        assert (driver.wait_whole() / FIRST).read_bytes() == (origin / FIRST).read_bytes()


def test_a_folder_that_is_removed_again_and_again_ends_the_wait(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path
) -> None:
    server.behave(node_rate=2e6)
    stop = threading.Event()

    def remove() -> None:
        while not stop.wait(0.4):
            shutil.rmtree(cache, ignore_errors=True)

    with ThreadPoolExecutor(1) as pool, LocalModel(manifest, server.options) as model:
        pool.submit(remove)
        try:
            with pytest.raises(WeightsError, match=r"removed from outside 5 times .*RemoveIPC"):
                model.wait_whole()
        finally:
            stop.set()


def test_a_file_that_was_removed_is_fetched_again(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path
) -> None:
    """The map said that its bytes are there, and the file was made again with zeros."""
    manifest = _in_small_chunks(manifest)
    server.behave(node_rate=8e6)
    with LocalModel(manifest, server.options) as model:
        while model.marks().count(1) < 6:
            time.sleep(0.02)
    (cache / f"{manifest.key}.partial" / FIRST).unlink()
    server.behave()
    folder = obtain(manifest, server.options)
    assert (folder / FIRST).read_bytes() == (origin / FIRST).read_bytes()


def test_after_a_restart_what_the_disk_lost_is_read_again_before_anybody_loads_it(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _in_small_chunks(manifest)
    partial = cache / f"{manifest.key}.partial"
    server.behave(node_rate=8e6)
    with LocalModel(manifest, server.options) as model:
        model.wait_engine()
        while model.marks().count(1) < 8:
            time.sleep(0.02)
    found = ChunkMap(partial / READY, writable=False)
    plan, marked = ChunkPlan(manifest), found.marks
    lost = [chunk for chunk in plan.chunks if marked[chunk.number]][-1]
    with (partial / manifest.files[lost.file].name).open("r+b") as file:
        file.seek(lost.start)
        file.write(bytes(lost.size))
    for module in (filling, ready):
        monkeypatch.setattr(module, "boot_id", lambda: "another")
    server.behave()
    with LocalModel(manifest, server.options) as model:
        weights = {name: tensor.numpy() for name, tensor in StreamedWeights.of(model.wait_engine()).tensors()}
        model.wait_whole()
    for name, file_name in (("embed", FIRST), ("head", SECOND)):
        assert weights[name].tobytes() == load_file(origin / file_name)[name].tobytes()
    left = sum(chunk.size for chunk in plan.chunks if not marked[chunk.number])
    assert sum(server.served().values()) == left + lost.size


def test_a_model_that_changes_is_refused(
    server: EmulatorProcess, origin: Path, manifest: Manifest, cache: Path
) -> None:
    other = origin / SECOND
    stamp = other.stat().st_mtime_ns + 1_000_000_000
    os.utime(other, ns=(stamp, stamp))
    with pytest.raises(WeightsError, match=r"model-2\.safetensors was replaced since the job was opened"):
        obtain(manifest, server.options)
    assert not (cache / manifest.key).exists()
    assert read_manifest(URI, server.options).key != manifest.key


def test_no_access(server: EmulatorProcess, manifest: Manifest) -> None:
    server.behave(access_key="another")
    with pytest.raises(WeightsError, match="not allowed: s3://bucket/models/m"):
        obtain(manifest, server.options)
    with pytest.raises(ConfigError, match="not allowed"):
        read_manifest(URI, server.options)


def _truncate(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-10])


def _empty(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"")


def _no_header(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"\xff" * 100)


def _false_index(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"embed": FIRST, "head": FIRST}}))


def _missing(folder: Path) -> None:
    (folder / SECOND).unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_truncate, r"model-2\.safetensors: truncated: tensors take"),
        (_empty, r"model-2\.safetensors: 0 bytes are too few"),
        (_no_header, r"model-2\.safetensors: not a safetensors file, or damaged"),
        (_false_index, "tensor 'head' is not in model-1.safetensors"),
        (_missing, "tensor 'head' is not in model-2.safetensors, which is missing"),
    ],
)
def test_damage_is_named_before_anything_is_fetched(
    damage: Callable[[Path], None], says: str, server: EmulatorProcess, origin: Path
) -> None:
    damage(origin)
    with pytest.raises(WeightsError, match=says):
        check_remote(read_manifest(URI, server.options), server.options)


def test_what_is_no_model(server: EmulatorProcess, origin: Path) -> None:
    with pytest.raises(ConfigError, match="there are no objects below it"):
        read_manifest("s3://bucket/nothing", server.options)
    (origin / INDEX).unlink()
    for file in origin.glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(ConfigError, match="pickle files"):
        read_manifest(URI, server.options)
    (origin / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_manifest(URI, server.options)
