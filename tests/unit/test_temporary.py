"""Temporary folders of killed processes are found and deleted, those in use are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dray.temporary import TemporaryFolder, sweep

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _age(folder: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(folder, (an_hour_ago, an_hour_ago))


def test_a_killed_run_leaves_nothing_for_long(tmp_path: Path) -> None:
    program = "import os; from dray.temporary import TemporaryFolder; "
    program += "folder = TemporaryFolder('dray-ray-'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=30)
    [left] = tmp_path.glob("dray-ray-*")
    sweep("dray-ray-")
    assert left.exists()  # too new to tell
    _age(left)
    with TemporaryFolder("dray-other-"):
        assert left.exists()  # not of this prefix
    with TemporaryFolder("dray-ray-"):
        assert not left.exists()
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_stays(tmp_path: Path) -> None:
    folder = TemporaryFolder("dray-ray-")
    _age(folder.path)
    program = "from dray.temporary import sweep; sweep('dray-ray-')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=30, check=True)
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()


def test_folders_of_others_stay(tmp_path: Path) -> None:
    for name in ("dray-ray-nolock", "other"):
        (tmp_path / name).mkdir()
        _age(tmp_path / name)
    sweep("dray-ray-")
    assert len(list(tmp_path.iterdir())) == 2
