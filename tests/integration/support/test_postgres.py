"""A test's PostgreSQL ends with the process that started it, and its data do not stay in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration

_STARTS_AND_DIES = """
import os
from tests.support.postgres import PostgresServer
server = PostgresServer(on_disk=True).__enter__()
print(server.pid, server._folder, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the server's user may look in, too, unlike pytest's."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made)


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_killed_process_leaves_neither_server_nor_data(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STARTS_AND_DIES],
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    pid, data = ended.stdout.split()
    deadline = time.monotonic() + 20
    while _lives(int(pid)) or Path(data).exists():
        assert time.monotonic() < deadline, "the guard let it go on"
        time.sleep(0.05)


def test_the_next_server_deletes_what_a_killed_guard_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    gone = subprocess.Popen(["true"])
    gone.wait()
    (left := folder / f"dray-pg-{gone.pid}-abc").mkdir()
    (used := folder / f"dray-pg-{os.getpid()}-abc").mkdir()
    with PostgresServer(on_disk=True):
        assert not left.exists()
        assert used.exists()
    assert list(folder.iterdir()) == [used]
