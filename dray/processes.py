"""End what a process started, or the process itself, at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_torn = threading.Event()


def end_without_teardown() -> None:
    """Have :func:`end` skip what libraries do at the end: one of them would hang or crash there."""
    _torn.set()


def end(code: int) -> NoReturn:
    """End this process with an exit code."""
    if _torn.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def kill_descendants() -> None:
    """SIGKILL to all children of this process and theirs; without /proc (outside Linux) nothing happens."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def no_survivors() -> Iterator[None]:
    """After the block, SIGKILL to those that descended from this process before it and still live.

    A process whose parent ends in the block is no longer a descendant of this one. Another process may reuse
    its pid. So each descendant is held by pidfd (pidfd_open(2)).
    """
    held = []
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it ended meanwhile
            held.append(os.pidfd_open(pid))
    try:
        yield
    finally:
        for descriptor in held:
            with contextlib.suppress(OSError):  # it ended in the block, as it should
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


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
