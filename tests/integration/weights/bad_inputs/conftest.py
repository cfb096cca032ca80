"""A store, a server and a cache of its own for each test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.weights.fetch import transfer
from dray.weights.fetch.limits import FetchLimits
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.source.checkpoint import INDEX
from tests.integration.weights.bad_inputs.support import (
    FIRST,
    SECOND,
    Answer,
    Limiter,
    Web,
    Webs,
    sound,
)
from tests.support.s3_emulator import EmulatorProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("origin")
    (root / "bucket/models").mkdir(parents=True)
    server = EmulatorProcess(root)
    yield server
    server.stop()


@pytest.fixture
def server(running: EmulatorProcess) -> EmulatorProcess:
    running.behave()
    return running


@pytest.fixture
def origin(running: EmulatorProcess) -> Iterator[Path]:
    """A model of two shards, 6 MB, and a file without bytes."""
    folder = running.root / "bucket/models/m"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "merges.txt").write_text("")
    numbers = np.random.default_rng(7)
    save_file({"embed": numbers.random((500, 1000), np.float32)}, folder / FIRST)
    save_file({"head": numbers.random((1000, 1000), np.float32)}, folder / SECOND)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"embed": FIRST, "head": SECOND}}))
    yield folder
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    folder.rmdir()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limiter:
    """Give up sooner than in life."""

    def limit(**limits: Any) -> None:
        monkeypatch.setattr(transfer, "FetchLimits", lambda: FetchLimits(**limits))

    return limit


@pytest.fixture
def web() -> Iterator[Webs]:
    started = []

    def start(rest: Answer = sound, *script: Answer) -> Web:
        started.append(Web(rest, *script))
        return started[-1]

    yield start
    for one in started:
        one.stop()
