"""Where a node keeps models: in memory that all processes share, or on disk where that is short."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "DRAY_MODEL_CACHE"
HUGE_VARIABLE = "DRAY_HUGE_PAGES"  # 0: no mount of our own

_SHARED = Path("/dev/shm")  # noqa: S108  the one shared-memory file system of Linux
_MEMORY_SHARE = 0.10  # of the machine's memory that stays free


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder for models. ``memory``: it is a file system in memory; what it holds counts as memory."""

    root: Path
    memory: bool


def places(environ: Mapping[str, str] = os.environ) -> list[Place]:
    """Where models may lie, best first: the folder that ``DRAY_MODEL_CACHE`` names and no other, or shared
    memory, then ``dray/models`` in the user's cache folder.
    """
    if named := environ.get(CACHE_VARIABLE):
        return [Place(root=Path(named), memory=_in_memory(Path(named)))]
    disk = Place(
        root=Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dray/models", memory=False
    )
    if not os.access(_SHARED, os.W_OK):
        return [disk]
    return [Place(root=_SHARED / f"dray-{os.getuid()}", memory=True), disk]


def prepare(place: Place) -> None:
    """Make the folder, for this user alone; in memory, as a mount with huge pages where we may.

    On huge pages a fresh byte costs a third less to write (measured: tests/benchmarks/RESULTS.md).
    """
    place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.root.stat().st_uid != os.getuid():
        raise PermissionError(f"{place.root} belongs to another user")
    if place.memory and place.root.parent == _SHARED and not os.path.ismount(place.root):
        _mount_huge(place.root)


def withdraw(place: Place) -> None:
    """Remove the folder where nothing is in it any more, and our mount."""
    if place.root.parent == _SHARED and os.path.ismount(place.root) and not _models(place.root):
        subprocess.run(["umount", str(place.root)], capture_output=True, check=False)
    if place.memory and not _models(place.root) and not os.path.ismount(place.root):
        shutil.rmtree(place.root, ignore_errors=True)


def room(place: Place) -> int:
    """Bytes that may be written there."""
    free = shutil.disk_usage(place.root).free
    return min(free, memory_room()) if place.memory else free


def memory_room() -> int:
    """Bytes of memory that this process and its like may still take, by the machine and by the cgroup."""
    found = {
        name: int(value.split()[0]) * 1024
        for name, value in (line.split(":") for line in _lines(Path("/proc/meminfo")))
        if name in ("MemTotal", "MemAvailable")
    }
    if not found:
        return sys.maxsize
    kept = int(_MEMORY_SHARE * found["MemTotal"])
    return max(0, min(found["MemAvailable"], _cgroup_room()) - kept)


def _cgroup_room() -> int:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        said = "".join(_lines(Path(limit)))
        if said.isdigit():
            return int(said) - int("".join(_lines(Path(used))) or 0)
    return sys.maxsize


def _mount_huge(root: Path) -> None:
    if os.geteuid() != 0 or os.environ.get(HUGE_VARIABLE) == "0" or any(root.iterdir()):
        return
    options = "huge=always,mode=0700,nosuid,nodev,noexec"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "dray-models", str(root)], capture_output=True, check=False
    )


def _models(root: Path) -> list[str]:
    """Folders of models, whole or not."""
    return [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _in_memory(folder: Path) -> bool:
    """Whether the file system that holds, or will hold, the folder lies in memory."""
    mounts = {
        line.split()[1]: line.split()[2] for line in _lines(Path("/proc/mounts")) if len(line.split()) > 2
    }
    absolute = folder.absolute()
    for parent in (absolute, *absolute.parents):
        if str(parent) in mounts:
            return mounts[str(parent)] in ("tmpfs", "ramfs")
    return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
