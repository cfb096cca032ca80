"""Engines on parts of one GPU start one after the other, whatever becomes of the one before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dray.engine.vllm_adapter.gpu_turn import _lock_file, turn_on
from dray.temporary import lock_file

pytestmark = pytest.mark.unit

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def _own_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{tmp_path.name}-{os.getpid()}")
    used = [_lock_file(), lock_file("gpu-another")]
    yield
    for path in used:
        path.unlink(missing_ok=True)


def hold(has_it: Event, go_on: Event, gpus: float = 0.5) -> None:
    with turn_on(gpus):
        has_it.set()
        go_on.wait(60)


def other(gpus: float = 0.5) -> tuple[multiprocessing.process.BaseProcess, Event, Event]:
    has_it, go_on = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(has_it, go_on, gpus))
    process.start()
    return process, has_it, go_on


@pytest.mark.parametrize("apart", [False, True])
def test_the_second_waits_for_the_first(apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each has a folder of its own for temporary files, as on two clusters of one machine."""
    process, has_it, go_on = other()
    assert has_it.wait(60)
    if apart:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
    second, second_has_it, second_goes_on = other()
    assert not second_has_it.wait(2)
    go_on.set()
    assert second_has_it.wait(60)
    second_goes_on.set()
    process.join(60)
    second.join(60)
    assert (process.exitcode, second.exitcode) == (0, 0)


def test_a_process_that_dies_gives_its_turn_back() -> None:
    process, has_it, _ = other()
    assert has_it.wait(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    with turn_on(0.5):
        pass


def test_a_turn_ends_with_its_block_though_a_forked_process_lives_on() -> None:
    with turn_on(0.5):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
    try:
        process, has_it, go_on = other()
        assert has_it.wait(30)
        go_on.set()
        process.join(60)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("gpus", "another"), [(None, False), (0.0, False), (1.0, False), (2.0, False), (0.5, True)]
)
def test_whole_gpus_and_other_gpus_do_not_wait(
    gpus: float | None, another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, has_it, go_on = other()
    assert has_it.wait(60)
    if another:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "another")
    began = time.monotonic()
    with turn_on(gpus):
        assert time.monotonic() - began < 5
    go_on.set()
    process.join(60)


def test_an_engine_starts_beside_a_file_that_is_not_this_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else another user of the machine could keep all engines from starting."""
    _lock_file().symlink_to(tmp_path / "elsewhere")
    with turn_on(0.5):
        pass
    assert "do not wait for each other to start" in caplog.text
    assert not (tmp_path / "elsewhere").exists()
