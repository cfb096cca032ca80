"""End what a process started, whatever sessions it made."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dray.processes import end_of_child

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


_NO_PIDFD = "import os; del os.pidfd_open\n"  # as in a Python that was built for old kernels
_OLD_KERNEL = """
import errno, os
def refused(*_):
    raise OSError(errno.ENOSYS, "not implemented")
os.pidfd_open = refused
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("before", ["", _NO_PIDFD, _OLD_KERNEL], ids=["pidfd", "old build", "old kernel"])
def test_orphans_end_and_newcomers_stay(before: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", before + ORPHANS], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    orphan, newcomer = ended.stdout.split()
    deadline = time.monotonic() + 5
    while _lives(orphan):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert _lives(newcomer)
    os.kill(int(newcomer), signal.SIGKILL)


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_descriptor_tells_the_end_of_a_child(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "60"]) as child:
        descriptor = end_of_child(child.pid)
        assert select.select([descriptor], [], [], 0.05)[0] == []
        child.kill()
        assert select.select([descriptor], [], [], 10)[0] == [descriptor]
        assert child.wait() == -signal.SIGKILL
    again = end_of_child(child.pid) if not pidfd else descriptor
    assert select.select([again], [], [], 10)[0] == [again]
    for one in {descriptor, again}:
        os.close(one)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
