"""How much of its machine a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dray import machine

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("cgroups", "files", "cores"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "5000 100000"}, 1),
        ("0::/pod/box\n", {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "max 100000"}, 3),
        ("0::/../elsewhere\n", {"cpu.max": "800000 100000"}, 8),
        (
            "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "600000", "cpu/cpu.cfs_period_us": "100000"},
            6,
        ),
        (
            "2:cpu,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            64,
        ),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 64),
    ],
)
def test_a_containers_quota_counts(
    cgroups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processor shows all cores of the machine: `docker run --cpus 4`, or a limit of Kubernetes."""
    (tmp_path / "cgroup").write_text(cgroups)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "fs")
    assert machine.cores() == cores
