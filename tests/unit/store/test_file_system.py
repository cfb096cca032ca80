"""SQLite's file is of one machine: what is refused, what is only read, and what stays as it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dray.errors import ConfigError, StoreFatalError
from dray.storage import file_system
from dray.storage.file_system import file_system_of
from dray.store import open_store
from dray.store.database import sqlite_file
from tests.support.stores import ready_job

pytestmark = pytest.mark.unit

ROOT = "1 0 8:1 / / rw,relatime shared:1 - {kind} {source} rw"
LINE = "{number} 1 0:{number} / {place} rw,relatime shared:{number} master:1 - {kind} {source} rw,vers=4.2"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is a mount of its own; the kernel's table of mounts, as the test writes it."""
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mountinfo")
    folder = tmp_path / "shared folder"
    folder.mkdir()
    return folder


def mount(folder: Path, kind: str, source: str = "server:/export") -> None:
    lines = [ROOT.format(kind="ext4", source="/dev/sda1")]
    place = str(folder).replace(" ", r"\040")
    lines += [LINE.format(number=30, place=place, kind="autofs", source="systemd-1")]
    lines += [LINE.format(number=31, place=place, kind=kind, source=source)]
    (folder.parent / "mountinfo").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        *((kind, "server:/export") for kind in ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph")),
        ("fuse.sshfs", "me@host:/home"),
        ("fuse.gcsfuse", "bucket"),
        ("fuse", "mountpoint-s3"),
        ("fuse.juicefs", "JuiceFS:jobs"),
        ("fuse.rclone", "remote:"),
    ],
)  # fmt: skip
def test_a_store_on_a_network_is_refused_with_what_to_do(mounted: Path, kind: str, source: str) -> None:
    mount(mounted, kind, source)
    with pytest.raises(ConfigError) as refused:
        open_store(str(mounted / "out" / "dray.db"))
    told = str(refused.value)
    assert f"({kind})" in told
    assert "--store /var/tmp/dray.db" in told
    assert "--store postgresql://" in told
    assert list(mounted.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        *((kind, "/dev/sdb") for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs")),
        ("fuse.fuse-overlayfs", "fuse-overlayfs"),
        ("fuseblk", "/dev/sdc1"),
        ("fuse.grpcfuse", "grpcfuse"),
        ("virtiofs", "home"),
        ("9p", "drvfs"),
    ],
)
def test_a_store_on_this_machine_or_its_host_is_taken(mounted: Path, kind: str, source: str) -> None:
    mount(mounted, kind, source)
    assert file_system_of(mounted / "out/dray.db").kind == kind
    open_store(str(mounted / "dray.db")).close()


def test_a_link_is_followed(mounted: Path) -> None:
    mount(mounted, "nfs4")
    link = mounted.parent / "link"
    link.symlink_to(mounted)
    with pytest.raises(ConfigError, match="nfs4"):
        open_store(str(link / "dray.db"))


def test_a_store_that_ray_would_delete_is_refused(tmp_path: Path) -> None:
    unpacked = tmp_path / "runtime_resources/working_dir_files/_ray_pkg_0123"
    with pytest.raises(ConfigError, match="Ray deletes this folder after the job"):
        open_store(str(unpacked / "dray.db"))
    assert not unpacked.exists()


def test_without_a_table_of_mounts_nothing_is_refused(mounted: Path) -> None:
    assert not file_system_of(mounted).network
    open_store(str(mounted / "dray.db")).close()


def test_what_only_reads_writes_nothing_to_a_store_on_a_network(mounted: Path) -> None:
    """As `dray status` on another machine: not even its journal, which belongs to who writes there."""
    path = mounted / "dray.db"
    with open_store(str(path)) as store:
        ready_job(store)
        left = {path.name: path.stat() for path in mounted.iterdir()}
        assert set(left) >= {"dray.db", "dray.db-journal"}
        mount(mounted, "nfs4")
        with open_store(str(path), create=False) as reader:
            assert reader.get_job("job").total == 8
            with pytest.raises(StoreFatalError, match="read-only"):
                reader.request_cancel("job")
        after = {path.name: path.stat() for path in mounted.iterdir()}
        assert {name: (s.st_ino, s.st_mtime_ns) for name, s in after.items()} == {
            name: (s.st_ino, s.st_mtime_ns) for name, s in left.items()
        }


def journal(path: Path) -> str:
    """The mode in the file's header, where a write-ahead log is noted (https://sqlite.org/fileformat.html)."""
    return "wal" if path.read_bytes()[18:20] == b"\x02\x02" else "rollback"


def test_who_reads_leaves_a_write_ahead_log_as_it_is(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(mounted, "ext4")
    monkeypatch.setattr(sqlite_file, "_WAL_SAFE", (3, 0, 0))
    path = mounted / "dray.db"
    with open_store(str(path)) as store:
        ready_job(store)
    assert journal(path) == "wal"
    monkeypatch.setattr(sqlite_file, "_WAL_SAFE", (99, 0, 0))  # an older library
    with open_store(str(path), create=False) as store:
        assert store.get_job("job").total == 8
    assert journal(path) == "wal"


def test_a_write_ahead_log_is_for_file_systems_that_are_known_only(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(mounted, "9p", "drvfs")
    monkeypatch.setattr(sqlite_file, "_WAL_SAFE", (3, 0, 0))
    open_store(str(mounted / "dray.db")).close()
    assert journal(mounted / "dray.db") == "rollback"
    with sqlite3.connect(mounted / "dray.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
