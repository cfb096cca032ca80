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

import pytest

from dray.cluster import ClusterSettings
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


def test_ray_says_what_it_cannot_do() -> None:
    head = Head(ClusterSettings(num_cpus=-1))
    try:
        with pytest.raises(ClusterError, match="could not start Ray on this machine: ValueError"):
            head.wait()
    finally:
        head.stop()
    head = Head(ClusterSettings())
    head.stop()  # before it was ready


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
