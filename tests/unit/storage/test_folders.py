"""The marker of a folder's owner: one job gets it, also on a file system without hard links."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dray.errors import ConfigError, JobFailedError
from dray.storage import folders
from dray.storage.folders import Owner, give_up, owner_of, refuse_foreign, take

pytestmark = pytest.mark.unit

REASONS = [None, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV]


def _owner(number: int) -> Owner:
    return Owner(job_id=f"job-{number}", identity=f"{number:032x}")


def _left(directory: str) -> list[str]:
    return [path.name for path in (Path(directory) / ".dray").iterdir()]


def _without_links(monkeypatch: pytest.MonkeyPatch, reason: int | None) -> None:
    """Stands for a file system that refuses links for this reason; none that can be mounted here does."""

    def link(*_: object, **__: object) -> None:
        assert reason is not None
        raise OSError(reason, os.strerror(reason))

    if reason is not None:
        monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("reason", REASONS)
def test_one_of_many_takes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int | None
) -> None:
    _without_links(monkeypatch, reason)
    for number in range(5):
        directory = str(tmp_path / str(number))
        begin = threading.Barrier(8)

        def one(number: int, directory: str = directory, begin: threading.Barrier = begin) -> bool:
            begin.wait()
            with suppress(ConfigError):
                take(directory, _owner(number))
                return True
            return False

        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(one, range(8)))
        assert sum(taken) == 1
        assert owner_of(directory) == _owner(taken.index(True))
        assert _left(directory) == ["owner.json"]


@pytest.mark.parametrize("reason", [None, errno.EPERM])
def test_a_folder_is_taken_once_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int | None
) -> None:
    _without_links(monkeypatch, reason)
    take(str(tmp_path), _owner(1))
    take(str(tmp_path), _owner(1))
    with pytest.raises(ConfigError, match="belongs to job job-1"):
        take(str(tmp_path), _owner(2))
    give_up(str(tmp_path), _owner(2))
    assert owner_of(str(tmp_path)) == _owner(1)
    take(str(tmp_path), _owner(2), overwrite=True)
    give_up(str(tmp_path), _owner(1))
    assert owner_of(str(tmp_path)) == _owner(2)
    give_up(str(tmp_path), _owner(2))
    assert _left(str(tmp_path)) == []


def test_a_job_and_an_export_of_it_are_no_two_jobs_of_one_name(tmp_path: Path) -> None:
    job, folder = _owner(1), str(tmp_path)
    for owner, other in ((job, job.of_export), (job.of_export, job)):
        take(folder, owner, overwrite=True)
        with pytest.raises(ConfigError, match=f"the folder belongs to {owner}; name another folder"):
            refuse_foreign(folder, other, [])


def test_a_marker_that_could_not_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_links(monkeypatch, errno.EPERM)
    real = os.fsync

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "owner.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobFailedError, match="No space left"):
        take(str(tmp_path), _owner(1))
    assert _left(str(tmp_path)) == []
    monkeypatch.setattr(os, "fsync", real)
    take(str(tmp_path), _owner(2))
    assert owner_of(str(tmp_path)) == _owner(2)


def test_an_empty_marker_is_read_once_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(str(tmp_path), _owner(1))
    marker = tmp_path / ".dray" / "owner.json"
    content = marker.read_bytes()
    marker.write_bytes(b"")
    later = threading.Timer(0.3, marker.write_bytes, [content])
    later.start()
    assert owner_of(str(tmp_path)) == _owner(1)
    marker.write_bytes(b"")  # of one that was killed there and then
    monkeypatch.setattr(folders, "_WRITTEN_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=r"cannot be read .* or remove that file"):
        owner_of(str(tmp_path))


def test_a_folder_that_a_deletion_removes_can_be_taken(tmp_path: Path) -> None:
    """It removes the folder of the marker once that is empty."""
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            with suppress(OSError):
                (tmp_path / ".dray").rmdir()
            time.sleep(0.002)

    deletion = threading.Thread(target=remove)
    deletion.start()
    try:
        for number in range(200):
            take(str(tmp_path), _owner(number))
            give_up(str(tmp_path), _owner(number))
    finally:
        done.set()
        deletion.join()
