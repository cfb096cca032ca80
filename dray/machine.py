"""What this machine is: its processor, and the version of an engine that is installed on it."""

from __future__ import annotations

import os
import platform
import re
from importlib.util import find_spec
from pathlib import Path

from dray import __version__

_VERSION = re.compile(r"""^__version__ = version = ['"]([^'"]+)['"]""", re.MULTILINE)


def processor_name() -> str:
    """The processor and how many of its cores this process may use: ``AMD EPYC 7B13 (8 cores)``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{_model() or platform.machine()} ({cores} core{'s' if cores != 1 else ''})"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return " ".join(found.get("model name", "").split())


def installed_version(engine: str) -> str | None:
    """The version that an engine of this machine has; None where none is installed. Imports nothing."""
    if engine == "simulated":
        return __version__
    found = find_spec(engine)
    if found is None or found.origin is None:
        return None
    try:
        said = _VERSION.search((Path(found.origin).parent / "_version.py").read_text())
    except OSError:
        return None
    return said[1] if said else None
