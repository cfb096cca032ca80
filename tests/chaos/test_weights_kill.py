"""``kill -9`` of who fetches a model, at random moments: the next one goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from dray.weights import LocalModel, Manifest, read_manifest
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.node.cache import READY, ModelPaths
from dray.weights.node.places import CACHE_VARIABLE, CacheRoot
from dray.weights.node.ready import ChunkMap
from tests.support.command import MARK, ROOT
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

URI = "s3://bucket/m"
CHUNK = 1_000_000
CHUNKS = 60
WINDOW = 8  # chunks at once
IN_FLIGHT = (WINDOW + max(2, WINDOW // 4)) * CHUNK  # what is asked for and not marked, hedges included
RATES = {False: 30e6, True: 6e6}  # bytes/s of the server; slower where a second process starts meanwhile

FILLER = f"""
import faulthandler, sys
faulthandler.dump_traceback_later(40)  # it takes seconds
from dataclasses import replace
from dray.storage import ObjectStoreOptions
from dray.weights import LocalModel, read_manifest
from dray.weights.fetch import transfer
from dray.weights.fetch.limits import FetchLimits
transfer.Limits = lambda: FetchLimits(largest_window={WINDOW})
keys = dict(access_key_id="k", secret_access_key="s")
options = ObjectStoreOptions(endpoint=sys.argv[1], region="r", allow_http=True, **keys)
with LocalModel(replace(read_manifest("{URI}", options), chunk_bytes={CHUNK}), options) as model:
    print("opened", flush=True)
    model.wait_whole()
"""


class Process:
    """One that has the model open, and all that it starts."""

    def __init__(self, server: EmulatorProcess) -> None:
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-c", FILLER, server.url],
            env={**os.environ, MARK: self._mark},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def opened(self) -> None:
        """Wait until it has the model open."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "opened\n"

    def kill(self, *, group: bool) -> None:
        """SIGKILL to it alone, or to its fetch processes too: either way none of them lives on."""
        if group:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + 5
        while left := self._left():
            assert time.monotonic() < deadline, f"it left {left}"
            time.sleep(0.01)

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(60)
        assert self._left() == []
        return code

    def runs(self) -> bool:
        return self._process.poll() is None

    def _left(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmulatorProcess]:
    """It has one model: 60 MB and a little."""
    origin = tmp_path / "origin/bucket/m"
    origin.mkdir(parents=True)
    (origin / "config.json").write_text("{}")
    rows = np.random.default_rng(3).random((CHUNKS * 250 // 2, 1000), np.float32)
    save_file({"w": rows}, origin / "model-1.safetensors")
    save_file({"v": rows[::-1].copy()}, origin / "model-2.safetensors")
    running = EmulatorProcess(tmp_path / "origin")
    yield running
    running.stop()


@pytest.fixture
def manifest(server: EmulatorProcess) -> Manifest:
    return replace(read_manifest(URI, server.options), chunk_bytes=CHUNK)


@pytest.fixture
def paths(manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPaths:
    """Where the model is kept; nothing is there yet."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return ModelPaths(place=CacheRoot(root=tmp_path / "cache", memory=False), key=manifest.key)


@pytest.mark.parametrize("standby", [False, True], ids=["resumed", "taken over"])
@pytest.mark.heavy
def test_a_fetch_that_is_killed_again_and_again_loses_what_was_in_flight_and_no_more(
    standby: bool,
    server: EmulatorProcess,
    manifest: Manifest,
    paths: ModelPaths,
    rng: random.Random,
    chaos_rounds: int,
) -> None:
    server.behave(node_rate=RATES[standby])
    processes = [Process(server)]
    processes[0].opened()
    try:
        for number in range(chaos_rounds):
            if standby:  # the next one has it open already
                processes.append(Process(server))
                processes[1].opened()
            moment, described = _moment(paths, rng, chaos_rounds - number, early=not (standby or number))
            _until(lambda: not processes[0].runs() or moment(), 60)  # noqa: B023  it is called here
            group = rng.random() < 0.5
            assert processes[0].runs(), f"it was done after {number} of {chaos_rounds} kills"
            before = _marked(paths)
            processes.pop(0).kill(group=group)
            after = _marked(paths)
            assert all(now >= then for then, now in zip(before, after, strict=False)), "a mark vanished"
            print(f"kill {number} ({'group' if group else 'alone'}) {described}: {after.count(1)} chunks")
            if not processes:
                processes.append(Process(server))
        assert processes[0].ended() == 0
    finally:
        for process in processes:
            process.kill(group=True)
    _is_there_once(server, manifest, paths)
    again = sum(server.served().values()) - manifest.size
    print(
        f"{chaos_rounds} kills: {again / 1e6:.1f} MB fetched again, {again / chaos_rounds / 1e6:.1f} a kill"
    )
    assert 0 <= again <= chaos_rounds * IN_FLIGHT


def test_a_kill_while_it_is_published_leaves_a_whole_model_or_none(
    server: EmulatorProcess, manifest: Manifest, paths: ModelPaths, rng: random.Random, chaos_rounds: int
) -> None:
    server.behave()
    states, chunks = [], len(ChunkPlan(manifest).chunks)
    for number in range(chaos_rounds):
        process = Process(server)
        _until(lambda: _marked(paths).count(1) == chunks or paths.whole.is_dir())
        time.sleep(rng.uniform(0, rng.choice([0.03, 0.6])))
        process.kill(group=bool(number % 2))
        states.append(paths.whole.is_dir())
        assert _marked(paths).count(1) == chunks
        if paths.whole.is_dir():
            _is_there_once(server, manifest, paths)
            for folder in (paths.whole, paths.engine):  # once more from the beginning
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()
    print(f"published at {sum(states)} of {chaos_rounds} kills")
    assert Process(server).ended() == 0
    _is_there_once(server, manifest, paths)


def _moment(
    paths: ModelPaths, rng: random.Random, rounds_left: int, *, early: bool
) -> tuple[Callable[[], bool], str]:
    """When to kill: after some more chunks, or (sometimes) soon after the start."""
    if early or rng.random() < 0.15:
        after = time.monotonic() + rng.uniform(0, 0.7)
        most = _marked(paths).count(1) + CHUNKS // (rounds_left + 2)
        return (
            lambda: time.monotonic() > after or _marked(paths).count(1) >= most,
            "soon after the start",
        )
    known = _marked(paths).count(1)
    more = rng.randrange(1, max(2, (CHUNKS - known) // (rounds_left + 1)))
    return lambda: _marked(paths).count(1) >= known + more, f"{more} chunks on"


def _marked(paths: ModelPaths) -> bytes:
    """What the map says; nothing where there is none yet."""
    with suppress(FileNotFoundError):
        found = ChunkMap(paths.file(READY), writable=False)
        try:
            return found.marks
        finally:
            found.close()
    return b""


def _until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _is_there_once(server: EmulatorProcess, manifest: Manifest, paths: ModelPaths) -> None:
    """Whole, with the right bytes, under its name alone; and who comes now reads nothing."""
    folders = {path.name for path in paths.place.root.iterdir() if path.is_dir()}
    assert folders == {manifest.key, f"{manifest.key}.engine"}
    plan = ChunkPlan(manifest)
    ready = ChunkMap(paths.whole / READY, writable=False)
    assert ready.marks == b"\1" * len(plan.chunks)
    for file in manifest.files:
        served = server.root / "bucket/m" / file.name
        assert _sha256(paths.whole / file.name) == _sha256(served), file.name
    before = sum(server.served().values())
    with LocalModel(manifest, server.options) as model:
        assert model.wait_whole() == paths.whole
    assert sum(server.served().values()) == before


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
