"""The head of a local cluster ends with its parent, however that ends, and says why it cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dray.cluster import ClusterSettings, cool_down, warm_up
from dray.cluster import head as head_module
from dray.cluster.head import Head
from dray.errors import ClusterError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PARENT = """
import signal, sys
from dray.cluster import ClusterSettings, open_cluster
cluster = open_cluster(ClusterSettings(num_cpus=1)); cluster.start(); cluster.wait()
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="h-") as folder:  # short: Ray's sockets lie in it
        yield Path(folder)


def _processes(folder: Path) -> list[str]:
    """Command lines and folders that name ``folder``: Ray's processes are given theirs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and entry.name != str(os.getpid()):
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
    return found


def test_a_killed_parent_leaves_nothing(temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    assert len(_processes(temporary)) > 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 15
    while (left := _processes(temporary)) or any(temporary.glob("dray-ray-*")):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_a_temporary_folder_of_a_batch_system(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's sockets would have names in it that Linux does not take."""
    long = temporary / "scratch.local.alice.12345678"
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    head = Head(ClusterSettings(num_cpus=1))
    try:
        assert ":" in head.wait()
    finally:
        head.stop()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(head_module, "_SHORT", (temporary / "missing",))
    with pytest.raises(ClusterError, match=r"TMPDIR .* too long .* at most 23 characters"):
        head_module.short_base()


def test_ray_says_what_it_cannot_do() -> None:
    head = Head(ClusterSettings(num_cpus=-1))
    try:
        with pytest.raises(ClusterError, match="could not start Ray on this machine: ValueError"):
            head.wait()
    finally:
        head.stop()
    head = Head(ClusterSettings())
    head.stop()  # before it was ready


def test_a_head_starts_nothing_until_it_is_asked(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary))
    head = Head()
    deadline = time.monotonic() + 60
    while not _has_imported_ray(head):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert psutil.Process(head._process.pid).children() == []
    head.stop()
    assert head._process.returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []


def test_a_head_has_the_environment_of_the_moment_it_is_asked(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_TEST_GONE", "1")
    head = Head()
    monkeypatch.delenv("DRAY_TEST_GONE")
    monkeypatch.setenv("DRAY_TEST_NEW", "\udcff")
    monkeypatch.setenv("TMPDIR", str(temporary))
    head.begin(ClusterSettings(num_cpus=1))
    try:
        head.wait()
        [daemon] = [one for one in psutil.Process(head._process.pid).children() if "raylet" in one.name()]
        environment = daemon.environ()
    finally:
        head.stop()
    assert "DRAY_TEST_GONE" not in environment
    assert environment["DRAY_TEST_NEW"] == "\udcff"
    assert list(temporary.iterdir()) == []


def test_a_warm_head_that_is_not_asked_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    before = {process.pid for process in psutil.Process().children()}
    environment = dict(os.environ)
    warm_up()
    assert dict(os.environ) == environment  # the job may be for another cluster
    assert {process.pid for process in psutil.Process().children()} - before
    cool_down()
    cool_down()
    assert {process.pid for process in psutil.Process().children()} == before


def _has_imported_ray(head: Head) -> bool:
    return "_raylet" in Path(f"/proc/{head._process.pid}/maps").read_text()


def test_a_head_that_dies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    head = Head(ClusterSettings())
    with pytest.raises(ClusterError, match="its head process ended with code 1"):
        head.wait()
    head.stop()


def test_a_head_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 100\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(head_module, "_START_SECONDS", 0.2)
    monkeypatch.setattr(head_module, "_STOP_SECONDS", 0.2)
    head = Head(ClusterSettings())
    with pytest.raises(ClusterError, match="no answer in"):
        head.wait()
    head.stop()
    assert head._process.returncode is not None
