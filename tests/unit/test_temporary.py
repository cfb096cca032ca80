"""Temporary folders of killed processes are found and deleted, those in use are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dray.temporary import TemporaryFolder, open_lock, sweep

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


def test_a_lock_is_a_file_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that all users may write to, another one may make the name first."""
    path = tmp_path / "one.lock"
    os.close(open_lock(path))
    assert path.stat().st_mode & 0o777 == 0o600
    os.close(open_lock(path))
    link = tmp_path / "link.lock"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(link)
    assert not (tmp_path / "elsewhere").exists()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(PermissionError, match="another user's"):
        open_lock(path)
