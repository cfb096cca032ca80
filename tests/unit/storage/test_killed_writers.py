"""What killed writers left is cleared, also where the file system has rules of its own for locks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from dray.storage.exports import ExportLock
from dray.storage.files import clear, open_locked

pytestmark = pytest.mark.unit


@pytest.fixture(params=["local", "nfs", "not ours"])
def folder(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a local file system, on NFSv4, or one whose files another user owns."""
    flock, opened = fcntl.flock, Path.open

    def of_nfs(file: Any, operation: int) -> None:
        """NFSv4 makes a byte-range lock of it: an exclusive one needs a file open for writing (flock(2))."""
        number = file if isinstance(file, int) else file.fileno()
        if operation & fcntl.LOCK_EX and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, operation)

    def of_another(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "+" in mode or "w" in mode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, mode, *rest, **options)

    if request.param == "nfs":
        monkeypatch.setattr(fcntl, "flock", of_nfs)
    if request.param == "not ours":
        monkeypatch.setattr(Path, "open", of_another)
    return tmp_path


def test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_stays(folder: Path) -> None:
    (folder / ".output.jsonl.0a1b2c3d.part").touch()
    with open_locked(folder / ".output.jsonl.11111111.part"):
        clear(folder, "output.jsonl")
        assert [path.name for path in folder.iterdir()] == [".output.jsonl.11111111.part"]


def test_what_a_killed_export_left_is_removed_and_what_a_live_one_writes_stays(folder: Path) -> None:
    live = ExportLock(folder, "xaaaaaaaa")
    names = {"export-xaaaaaaaa.lock", "output-xaaaaaaaa.jsonl.part"}
    for name in ("output-xaaaaaaaa.jsonl.part", "output-xdeadbeef.jsonl.part", "export-xdeadbeef.lock"):
        (folder / name).touch()
    other = ExportLock(folder, "xbbbbbbbb")
    assert {path.name for path in folder.iterdir()} == names | {"export-xbbbbbbbb.lock"}
    other.close()
    live.close()
