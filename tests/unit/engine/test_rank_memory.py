"""The memory that ranks share: that of killed engines goes, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from dray.engine.vllm_adapter.core.rank_memory import PREFIX, remove_unowned
from dray.owner import owner_name

pytestmark = [pytest.mark.unit, pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")]

_FOLDER = Path("/dev/shm")
_ENGINE = """
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from dray.engine.vllm_adapter.core import rank_process

def rank():
    made = SharedMemory(create=True, size=100)
    print(made.name, resource_tracker._resource_tracker._pid, flush=True)
    input()

rank_process._main = rank
rank_process.run_rank()
"""


class Rank:
    """A rank's process with some shared memory of a name that it did not choose."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        name, helper = self.process.stdout.readline().split()
        self.memory, self._helper = _FOLDER / name, int(helper)

    def kill(self) -> None:
        """As Ray does: with the helper that would have removed the memory."""
        if self.process.returncode is None:
            os.kill(self._helper, signal.SIGKILL)
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    try:
        yield made
    finally:
        made.kill()
        made.memory.unlink(missing_ok=True)


def test_memory_of_killed_ranks_is_removed_once_they_are_gone(rank: Rank) -> None:
    remove_unowned()
    assert rank.memory.stat().st_size == 100  # it lives
    rank.kill()
    assert rank.memory.exists()
    remove_unowned()
    assert not rank.memory.exists()


def test_memory_of_others_stays() -> None:
    """Of programs without our names, and of processes of another container that has the same memory."""
    owner = owner_name().split("/")
    elsewhere = _FOLDER / (PREFIX + "~".join([owner[0], "1", *owner[2:5], "1"]))
    elsewhere.touch()
    foreign = shared_memory.SharedMemory(create=True, size=100)
    try:
        remove_unowned()
        assert elsewhere.exists()
        assert (_FOLDER / foreign.name).exists()
    finally:
        elsewhere.unlink()
        foreign.close()
        foreign.unlink()
