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
    its pid. So each descendant is held by pidfd (pidfd_open(2)), or known by the time of its start.
    """
    held = [(pid, _pidfd_of(pid), _start_of(pid)) for pid in _descendants(os.getpid())]
    try:
        yield
    finally:
        for pid, descriptor, start in held:
            with contextlib.suppress(OSError):  # it ended in the block, as it should
                if descriptor is not None:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                elif start is not None and _start_of(pid) == start:
                    os.kill(pid, signal.SIGKILL)
            if descriptor is not None:
                os.close(descriptor)


def end_of_child(pid: int) -> int:
    """A descriptor that becomes readable when this child of the process ends."""
    descriptor = _pidfd_of(pid)
    if descriptor is not None:
        return descriptor
    ours, ends = os.pipe()

    def watch() -> None:
        with contextlib.suppress(ChildProcessError):  # it was waited for already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(ends)

    threading.Thread(target=watch, name="dray-child", daemon=True).start()
    return ours


def _pidfd_of(pid: int) -> int | None:
    """None where it has ended, and where Python or the kernel knows no pidfds.

    Python has them where its build did; many builds for all of Linux, as of uv until July 2026, did not.
    """
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


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
            pairs.append((int(entry.name), int(_stat_of(int(entry.name))[1])))
    return pairs


def _start_of(pid: int) -> str | None:
    """When it started, in clock ticks since boot (field 22)."""
    with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
        return _stat_of(pid)[19]
    return None


def _stat_of(pid: int) -> list[str]:
    """The fields of its stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
