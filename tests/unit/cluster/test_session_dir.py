"""Ray's temporary folders of killed runs are found and deleted, those in use are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dray.cluster.session_dir import TemporaryFolder, sweep

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _age(folder: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(folder, (an_hour_ago, an_hour_ago))


def test_a_killed_run_leaves_nothing_for_long(tmp_path: Path) -> None:
    program = "import os; from dray.cluster.session_dir import TemporaryFolder; "
    program += "folder = TemporaryFolder(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=30)
    [left] = tmp_path.glob("dray-ray-*")
    sweep()
    assert left.exists()  # too new to tell
    _age(left)
    sweep()
    assert not left.exists()


def test_a_folder_in_use_stays(tmp_path: Path) -> None:
    folder = TemporaryFolder()
    _age(folder.path)
    program = "from dray.cluster.session_dir import sweep; sweep()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=30, check=True)
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()


def test_folders_of_others_stay(tmp_path: Path) -> None:
    for name in ("dray-ray-nolock", "other"):
        (tmp_path / name).mkdir()
        _age(tmp_path / name)
    sweep()
    assert len(list(tmp_path.iterdir())) == 2
