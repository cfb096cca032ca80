"""Row 14: no room."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.weights import LocalModel
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.node.places import CACHE_VARIABLE
from tests.integration.weights.bad_inputs.support import (
    SECOND,
    URI,
    asked,
    known,
    until,
)
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache in a memory file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "dray-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_row_14_a_model_that_has_no_room_is_told_before_anything_is_read(
    server: EmulatorProcess, origin: Path, small: Path
) -> None:
    manifest = known(server)
    (small / "other").write_bytes(bytes(4 << 20))
    server.behave()
    with pytest.raises(WeightsError) as raised, LocalModel(manifest, server.options):
        pass
    said = str(raised.value)
    assert said.startswith(f"no room for model {URI} (0.01 GB)")
    assert str(small) in said
    assert "DRAY_MODEL_CACHE" in said
    assert asked(server) == 0


def test_row_14_memory_that_fills_up_meanwhile_is_an_error_and_nobody_dies(
    server: EmulatorProcess, origin: Path, small: Path
) -> None:
    manifest = known(server)
    server.behave(node_rate=2e6)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine()).tensors()
        _fill_up(small / "other")
        says = (
            rf"no room for model {URI} \(0\.01 GB\) in {small}; set DRAY_MODEL_CACHE to a folder on a larger"
        )
        with pytest.raises(WeightsError, match=says):
            list(weights)
        with pytest.raises(WeightsError, match=says):
            model.wait_whole()
    assert not (small / manifest.key).exists()
    (small / "other").unlink()
    server.behave()
    time.sleep(0.2)
    with LocalModel(manifest, server.options) as model:  # with what was there already
        assert (model.wait_whole() / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert 0 < sum(server.served().values()) < manifest.size


@pytest.mark.parametrize("begun", [False, True], ids=["at first", "after an earlier try"])
def test_row_14_a_disk_that_does_not_take_the_files_is_told_at_once(
    begun: bool, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    """Here something else lies where a file is to be."""
    manifest = known(server)
    server.behave(node_rate=3e6)
    if begun:
        with LocalModel(manifest, server.options) as model:
            until(lambda: model.marks().count(1) >= 3)
    in_the_way = cache / f"{manifest.key}.partial/config.json"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir(parents=True)
    (cache / f"{manifest.key}.use").touch()  # without it, the folder would be what a removal left
    with LocalModel(manifest, server.options) as model, pytest.raises(WeightsError, match="Is a directory"):
        model.wait_whole(_patience(5))
    assert not (cache / manifest.key).exists()


def _patience(seconds: float) -> Callable[[], None]:
    """Ends a wait that takes longer."""
    deadline = time.monotonic() + seconds

    def look() -> None:
        assert time.monotonic() < deadline, "nobody said anything"

    return look


def _fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
