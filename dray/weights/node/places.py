"""Where a node keeps models: in memory that all processes share, or on disk where that is short."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dray.errors import ConfigError, WeightsError
from dray.machine import lines_of
from dray.storage.file_system import file_system_of
from dray.storage.home import home_folder

CACHE_VARIABLE = "DRAY_MODEL_CACHE"
HUGE_VARIABLE = "DRAY_HUGE_PAGES"  # 0: no mount of our own

_SHARED = Path("/dev/shm")  # noqa: S108  the one shared-memory file system of Linux
_MEMORY_SHARE = 0.10  # of the machine's memory, and of a cgroup's, that stays free
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = {  # by version: the limit, the use, and what of the use gives way when memory is short
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoot:
    """A folder for models. ``memory``: it is a file system in memory; what it holds counts as memory."""

    root: Path
    memory: bool


def cache_roots(environ: Mapping[str, str] = os.environ) -> list[CacheRoot]:
    """Where models may lie, best first: the folder that ``DRAY_MODEL_CACHE`` names and no other, or shared
    memory, then ``dray/models`` in the user's cache folder.

    Raises:
        ConfigError: there is no shared memory, and this user has no home.
    """
    if named := environ.get(CACHE_VARIABLE):
        return [CacheRoot(root=Path(named), memory=file_system_of(Path(named)).memory)]
    shared = (
        [CacheRoot(root=_SHARED / f"dray-{os.getuid()}", memory=True)] if os.access(_SHARED, os.W_OK) else []
    )
    try:
        disk = Path(environ.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "dray/models"
    except ConfigError:
        if shared:
            return shared
        raise
    return [*shared, CacheRoot(root=disk, memory=False)]


def prepare(place: CacheRoot) -> None:
    """Make the folder, for this user alone; in memory, as a mount with huge pages where we may.

    Fresh bytes cost less there: ``python -m tests.benchmarks.weights --only memcpy memcpy-4k`` measures it.

    Raises:
        WeightsError: it cannot be made, or is not this user's.
        FileNotFoundError: another process removed it at this moment.
    """
    shared = place.root.parent == _SHARED  # where others may have put a link under this name
    try:
        place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = (place.root.lstat() if shared else place.root.stat()).st_uid
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WeightsError(f"{place.root}: models cannot be kept there: {error.strerror}") from None
    found = file_system_of(place.root)
    if found.network:  # its locks and marks would be of one machine, and the others would wait for them
        raise WeightsError(
            f"{place.root}: models cannot be kept there: {found.mounted_at} is a network's file system "
            f"({found.kind}); set {CACHE_VARIABLE} to a folder on a disk of the node's own"
        )
    if owner != os.getuid():
        raise WeightsError(f"{place.root}: models cannot be kept there: it belongs to another user")
    if place.memory and shared and not os.path.ismount(place.root):
        _mount_huge(place.root)


def withdraw(place: CacheRoot) -> None:
    """Remove our mount if no model is in it; it stays while a process has a file of it open."""
    if place.root.parent == _SHARED and os.path.ismount(place.root) and not _folders(place.root):
        with suppress(OSError):  # an image may have no umount(8): the mount stays, and is empty
            subprocess.run(["umount", str(place.root)], capture_output=True, check=False)


def room(place: CacheRoot) -> int:
    """Bytes that may be written there."""
    free = shutil.disk_usage(place.root).free
    return min(free, memory_room()) if place.memory else free


def memory_room() -> int:
    """Bytes of memory that this process and its like may still take, by the machine and by the cgroups."""
    found = {
        name: int(value.split()[0]) * 1024
        for name, value in (line.split(":") for line in lines_of(Path("/proc/meminfo")))
        if name in ("MemTotal", "MemAvailable")
    }
    if not found:
        return sys.maxsize
    kept = int(_MEMORY_SHARE * found["MemTotal"])
    return max(0, min(found["MemAvailable"] - kept, _cgroup_room()))


def _cgroup_room() -> int:
    """What the tightest of the limits around this process leaves free."""
    rooms = [sys.maxsize]
    for line in lines_of(Path("/proc/self/cgroup")):
        _, controllers, name = line.split(":", 2)
        version = 1 if "memory" in controllers.split(",") else 2
        if controllers and version == 2:
            continue
        root = _CGROUPS / "memory" if version == 1 else _CGROUPS
        folder = root / name.lstrip("/")  # in a container the last one, the root, stands for it
        rooms += [_room_in(one, version) for one in (folder, *folder.parents) if one.is_relative_to(root)]
    return min(rooms)


def _room_in(folder: Path, version: int) -> int:
    limit, used, gives_way = _LIMITS[version]
    said = "".join(lines_of(folder / limit))
    if not said.isdigit():  # "max", or there is none
        return sys.maxsize
    stat = dict(line.split()[:2] for line in lines_of(folder / "memory.stat"))
    taken = int("".join(lines_of(folder / used)) or 0) - int(stat.get(gives_way, 0))
    return int(int(said) * (1 - _MEMORY_SHARE)) - taken


def _mount_huge(root: Path) -> None:
    """Once, however many processes come at the same time: they lock the folder that lies below the mount."""
    if os.geteuid() != 0 or os.environ.get(HUGE_VARIABLE) == "0":
        return
    below = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(below, fcntl.LOCK_EX)
        if os.path.ismount(root) or any(os.scandir(below)):  # another process mounted it, or uses it as it is
            return
        options = "huge=always,size=90%,mode=0700,nosuid,nodev,noexec"
        command = ["mount", "-t", "tmpfs", "-o", options, "dray-models", str(root)]
        with suppress(OSError):  # an image may have no mount(8): the folder is used as it is
            subprocess.run(command, capture_output=True, check=False)
    finally:
        os.close(below)


def _folders(root: Path) -> list[str]:
    """The folders of models, whole or not."""
    return [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
