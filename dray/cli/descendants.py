"""End what this process started, at once."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_descendants() -> None:
    """SIGKILL to all children of this process and theirs.

    Most of Ray's processes end with the process that started them, but its agents first try for about a
    minute to tell somebody. Without /proc (outside Linux) nothing happens.
    """
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def _parents() -> list[tuple[int, int]]:
    """Pid and parent of every process (proc(5), fields 1 and 4 of stat)."""
    pairs = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
            pairs.append((int(entry.name), int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])))
    return pairs
