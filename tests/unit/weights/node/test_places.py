"""Where models may lie, and how much of them: what the machine, its cgroups and its file systems leave."""

from __future__ import annotations

import os
import subprocess
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.storage import file_system
from dray.weights.node import places as module
from dray.weights.node.places import (
    CACHE_VARIABLE,
    CacheRoot,
    cache_roots,
    memory_room,
    prepare,
    room,
    withdraw,
)

pytestmark = pytest.mark.unit

GB = 10**9
Usage = namedtuple("Usage", "total used free")

Files = Callable[[dict[str, str]], None]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Make the kernel's files say this; those not named do not exist."""

    def say(content: dict[str, str]) -> None:
        monkeypatch.setattr(module, "lines_of", lambda path: content.get(str(path), "").splitlines())

    return say


def machine(total: int = 100 * GB, available: int = 80 * GB) -> dict[str, str]:
    return {"/proc/meminfo": f"MemTotal: {total // 1024} kB\nMemAvailable: {available // 1024} kB\n"}


def v2(path: str, limit: object, used: int, inactive: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup{path}"
    stat = f"anon 5\ninactive_file {inactive}\n"
    return {f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.current": f"{used}\n",
            f"{folder}/memory.stat": stat}  # fmt: skip


def v1(path: str, limit: int, used: int, inactive: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup/memory{path}"
    stat = f"inactive_file 1\ntotal_inactive_file {inactive}\n"
    return {f"{folder}/memory.limit_in_bytes": f"{limit}\n", f"{folder}/memory.usage_in_bytes": f"{used}\n",
            f"{folder}/memory.stat": stat}  # fmt: skip


IN_CONTAINER = {"/proc/self/cgroup": "0::/\n"}
V1_CONTAINER = {"/proc/self/cgroup": "9:memory:/docker/ab\n8:cpu,cpuacct:/docker/ab\n0::/\n"}


def _about(value: int, expected: float) -> None:
    assert abs(value - expected) < 1e6, (value, expected)


# -- which places -----------------------------------------------------------------------------


def test_the_named_folder_and_no_other(tmp_path: Path) -> None:
    found = cache_roots({CACHE_VARIABLE: str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"})
    assert [place.root for place in found] == [tmp_path]


def test_shared_memory_goes_before_the_users_cache_folder() -> None:
    found = cache_roots({"XDG_CACHE_HOME": "/x"})
    assert found == [
        CacheRoot(root=Path(f"/dev/shm/dray-{os.getuid()}"), memory=True),
        CacheRoot(root=Path("/x/dray/models"), memory=False),
    ]


def test_without_shared_memory_there_is_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_SHARED", tmp_path / "none")
    assert cache_roots({"XDG_CACHE_HOME": "/x"}) == [CacheRoot(root=Path("/x/dray/models"), memory=False)]


def test_a_named_folder_in_memory_counts_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also below a mount with a space in its name, which the kernel writes as an octal number."""
    disk, memory = tmp_path / "disk", tmp_path / "in memory"
    disk.mkdir()
    memory.mkdir()
    (tmp_path / "link").symlink_to(memory)
    mounts = tmp_path / "mountinfo"
    place = str(memory).replace(" ", r"\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {place} rw - tmpfs t rw\n")
    monkeypatch.setattr(file_system, "_MOUNTS", mounts)
    for folder, expected in (
        (disk, False),
        (memory, True),
        (memory / "not/there/yet", True),
        (tmp_path / "link/models", True),
    ):
        assert [place.memory for place in cache_roots({CACHE_VARIABLE: str(folder)})] == [expected], folder


# -- how much room ----------------------------------------------------------------------------


def test_a_tenth_of_the_machines_memory_stays_free(files: Files) -> None:
    files(machine(100 * GB, 80 * GB))
    _about(memory_room(), 70 * GB)
    files(machine(100 * GB, 5 * GB))
    assert memory_room() == 0


@pytest.mark.parametrize(
    "limits", [IN_CONTAINER | v2("", 10 * GB, 4 * GB), V1_CONTAINER | v1("", 10 * GB, 4 * GB)]
)
def test_a_containers_limit_counts(files: Files, limits: dict[str, str]) -> None:
    files(machine() | limits)
    _about(memory_room(), 5 * GB)  # and a tenth of the limit stays free, not one of the machine


@pytest.mark.parametrize(
    "limits",
    [IN_CONTAINER | v2("", 10 * GB, 8 * GB, 6 * GB), V1_CONTAINER | v1("", 10 * GB, 8 * GB, 6 * GB)],
)
def test_cached_files_give_way(files: Files, limits: dict[str, str]) -> None:
    files(machine() | limits)
    _about(memory_room(), 7 * GB)


def test_a_container_whose_memory_is_used_up_has_no_room(files: Files) -> None:
    files(machine() | IN_CONTAINER | v2("", 10 * GB, 12 * GB))
    assert memory_room() == 0


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"/proc/self/cgroup": "0::/user.slice\n"} | v2("/user.slice", "max", 4 * GB),
        V1_CONTAINER | v1("", 9223372036854771712, 4 * GB),
    ],
)
def test_without_a_limit_the_machine_counts(files: Files, limits: dict[str, str]) -> None:
    files(machine() | limits)
    _about(memory_room(), 70 * GB)


def test_the_tightest_limit_on_the_way_to_the_root_counts(files: Files) -> None:
    """As batch systems set them, without a namespace: on the job, for all of its steps."""
    files(
        machine()
        | {"/proc/self/cgroup": "0::/slurm/job_7/step_0\n"}
        | v2("/slurm/job_7/step_0", "max", 1 * GB)
        | v2("/slurm/job_7", 20 * GB, 3 * GB)
        | v2("/slurm", 60 * GB, 30 * GB)
    )
    _about(memory_room(), 15 * GB)


def test_where_the_kernel_says_nothing_the_file_system_counts(files: Files, tmp_path: Path) -> None:
    files({})
    in_memory, on_disk = (room(CacheRoot(root=tmp_path, memory=memory)) for memory in (True, False))
    assert in_memory == pytest.approx(on_disk, rel=0.1)  # other programs write to this disk as well
    assert on_disk > 0


@pytest.mark.parametrize(("memory", "free", "expected"), [
    (True, 64 * 10**6, 64 * 10**6),  # a pod's own /dev/shm
    (True, 90 * GB, 70 * GB),
    (False, 90 * GB, 90 * GB),
])  # fmt: skip
def test_the_file_system_and_in_memory_the_memory_limit_it(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bool, free: int, expected: int
) -> None:
    files(machine())
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(free, 0, free))
    _about(room(CacheRoot(root=tmp_path, memory=memory)), expected)


# -- making and leaving -----------------------------------------------------------------------


def test_the_folder_is_this_users_alone(tmp_path: Path) -> None:
    place = CacheRoot(root=tmp_path / "a/b", memory=False)
    prepare(place)
    prepare(place)
    assert place.root.stat().st_mode & 0o777 == 0o700


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(WeightsError, match="models: models cannot be kept there: File exists"):
        prepare(CacheRoot(root=tmp_path / "models", memory=False))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 12_345)
    with pytest.raises(WeightsError, match="it belongs to another user"):
        prepare(CacheRoot(root=tmp_path, memory=False))


def test_a_link_that_another_user_left_in_shared_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lead to a folder of this user's: what counts is whose the link is."""
    if os.geteuid():
        pytest.skip("only root can make another user's link")
    shared, precious = tmp_path / "shm", tmp_path / "precious"
    shared.mkdir()
    precious.mkdir()
    (shared / "dray-0").symlink_to(precious)
    os.chown(shared / "dray-0", 65_534, 65_534, follow_symlinks=False)
    monkeypatch.setattr(module, "_SHARED", shared)
    with pytest.raises(WeightsError, match="it belongs to another user"):
        prepare(CacheRoot(root=shared / "dray-0", memory=True))
    assert list(precious.iterdir()) == []


def test_a_mount_in_shared_memory_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARED", tmp_path)
    monkeypatch.delenv(module.HUGE_VARIABLE, raising=False)
    place = CacheRoot(root=tmp_path / "dray-test", memory=True)
    prepare(place)
    if not os.path.ismount(place.root):
        pytest.skip("needs the right to mount")
    try:
        (place.root / "key.partial").mkdir()
        withdraw(place)
        assert os.path.ismount(place.root)
        (place.root / "key.partial").rmdir()
        with (place.root / ".lock").open("w"):  # somebody is about to put a model there
            withdraw(place)
            assert os.path.ismount(place.root)
        withdraw(place)
        assert not os.path.ismount(place.root)
    finally:
        subprocess.run(["umount", str(place.root)], capture_output=True)


def test_root_in_an_image_without_mount_uses_the_folder_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHARED", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    place = CacheRoot(root=tmp_path / "dray-test", memory=True)
    prepare(place)
    assert place.root.is_dir()
    monkeypatch.setattr(os.path, "ismount", lambda path: True)  # as another container left it
    withdraw(place)


def test_no_mount_where_the_user_wants_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARED", tmp_path)
    monkeypatch.setenv(module.HUGE_VARIABLE, "0")
    prepare(CacheRoot(root=tmp_path / "dray-test", memory=True))
    assert not os.path.ismount(tmp_path / "dray-test")


def test_a_folder_that_other_machines_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks of what is there are of one machine: the others would wait for them, and fail."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"31 1 0:31 / {tmp_path} rw,relatime shared:31 - nfs4 server:/export rw,vers=4.2\n")
    monkeypatch.setattr(file_system, "_MOUNTS", mounts)
    place = CacheRoot(root=tmp_path / "models", memory=False)
    with pytest.raises(WeightsError, match=rf"network's file system \(nfs4\); set {CACHE_VARIABLE}"):
        prepare(place)
    mounts.write_text(f"31 1 0:31 / {tmp_path} rw,relatime shared:31 - ext4 /dev/sda1 rw\n")
    prepare(place)
