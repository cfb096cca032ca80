"""End what a process started, whatever sessions it made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

GRANDCHILD = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
PARENT = f"""
import subprocess, sys
from dray.processes import kill_descendants
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child = subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], start_new_session=True, **pipes)
print(child.pid, child.stdout.readline().strip(), flush=True)
kill_descendants()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_and_theirs_end(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=60, check=True
    )
    pids = ended.stdout.split()
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


ORPHANS = """
import subprocess, sys
from dray.processes import no_survivors
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
grandchild = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", grandchild], **pipes)
orphan = child.stdout.readline().strip()
with no_survivors():
    child.kill(); child.wait()
    other = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(orphan, other.pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_orphans_end_and_newcomers_stay() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    orphan, newcomer = ended.stdout.split()
    deadline = time.monotonic() + 5
    while _lives(orphan):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert _lives(newcomer)
    os.kill(int(newcomer), signal.SIGKILL)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
