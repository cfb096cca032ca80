"""Row 15: whoever fetches is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dray.weights import LocalModel, Manifest
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.node.cache import READY
from dray.weights.node.ready import ChunkMap
from dray.weights.source.checkpoint import INDEX
from tests.integration.weights.bad_inputs.support import (
    CHUNK,
    ROOT,
    SECOND,
    WINDOW,
    arrives,
    known,
    until,
)
from tests.support.reference import deserialize
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


FILLER = """
import sys
from dataclasses import replace
from dray.storage import ObjectStoreOptions
from dray.weights import LocalModel, read_manifest
keys = dict(access_key_id="k", secret_access_key="s")
options = ObjectStoreOptions(endpoint=sys.argv[1], region="r", allow_http=True, **keys)
manifest = replace(read_manifest("s3://bucket/models/m", options), chunk_bytes=int(sys.argv[2]))
print("begins", flush=True)
with LocalModel(manifest, options) as model:
    model.wait_whole()
print("done", flush=True)
"""


def _filler(server: EmulatorProcess) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FILLER, server.url, str(CHUNK)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def _marked(cache: Path, manifest: Manifest) -> bytes:
    path = cache / f"{manifest.key}.partial" / READY
    return ChunkMap(path, writable=False).marks if path.is_file() else b""


def _fetchers() -> list[psutil.Process]:
    """The fetch processes of this one; a child of an earlier test may lie there dead."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "fetcher.py" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.heavy
def test_row_15_a_fetch_process_that_is_killed_is_replaced(server: EmulatorProcess, origin: Path) -> None:
    manifest = known(server)
    server.behave(node_rate=3e6)
    with LocalModel(manifest, server.options) as model:
        for goal in (4, 10):
            until(lambda goal=goal: model.marks().count(1) >= goal)  # type: ignore[misc]
            fetchers = _fetchers()
            assert fetchers
            fetchers[0].kill()
        folder = model.wait_whole()
        assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert model.outcome is not None
    assert model.outcome.faults["fetcher"] >= 1
    assert sum(server.served().values()) <= manifest.size + 2 * WINDOW * CHUNK


def test_row_15_a_filler_that_is_killed_is_taken_over_from_at_once(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    server.behave(node_rate=3e6)
    filler = _filler(server)
    until(lambda: _marked(cache, manifest).count(1) >= 5)
    children = psutil.Process(filler.pid).children(recursive=True)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        time.sleep(0.3)
        assert model.outcome is None
        filler.send_signal(signal.SIGKILL)
        filler.wait()
        marked = _marked(cache, manifest).count(1)
        found = dict(weights.tensors())
        folder = model.wait_whole()
    expected = dict(deserialize((origin / SECOND).read_bytes()))["head"]["data"]
    assert found["head"].numpy().tobytes() == bytes(expected)
    assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert psutil.wait_procs(children, timeout=5)[1] == []
    again = sum(server.served().values()) - manifest.size
    assert 5 <= marked < len(model.plan.chunks)
    assert again <= WINDOW * CHUNK
    assert model.outcome is not None


def test_row_15_a_filler_that_dies_before_it_began_is_taken_over_from(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    """It holds the lock, and has not made the map yet."""
    manifest = known(server)
    code = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True)\n"
        "time.sleep(60)"
    )
    cache.mkdir(mode=0o700)
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(cache / f"{manifest.key}.fill")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with LocalModel(manifest, server.options) as model:
        time.sleep(0.3)
        holder.kill()
        holder.wait()
        began = time.monotonic()
        model.wait_whole()
        assert time.monotonic() - began < 30  # on a busy machine; the lock was for 60 s


def test_row_15_of_several_that_race_one_fills(server: EmulatorProcess, origin: Path, cache: Path) -> None:
    manifest = known(server)
    server.behave(node_rate=20e6)
    fillers = [_filler(server) for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: arrives(manifest, server.options, origin), range(2)))
    for filler in fillers:
        assert filler.communicate(timeout=30)[0].split() == ["begins", "done"]
        assert filler.returncode == 0
    assert sum(server.served().values()) - 3 * (origin / INDEX).stat().st_size == manifest.size
