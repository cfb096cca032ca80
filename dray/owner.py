"""Who holds a job or a shard: one process, named so that its death can be noticed on the same machine.

A name is ``HOST/PID/START/UNIQUE/BOOT/NAMESPACE``. The host is for people: containers with the host's network
all have that of the machine. A pid has a meaning only within one boot of the kernel and one pid namespace.
Pids are reused, so the name includes the process's start time.
"""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_UNKNOWN = "-"


class _Space(NamedTuple):
    """What this process's pids mean something in: one boot of one kernel, and one pid namespace of it."""

    boot: str
    namespace: str

    @property
    def known(self) -> bool:
        return _UNKNOWN not in self


def owner_name() -> str:
    """A name for this process: host, pid, the process's start time, something unique, boot and namespace."""
    pid, space = os.getpid(), _space()
    unique = uuid.uuid4().hex[:8]
    return f"{socket.gethostname()}/{pid}/{_started(pid)}/{unique}/{space.boot}/{space.namespace}"


def owner_in_words(owner: str) -> str:
    """The owner in words: ``process PID on HOST``; a name of another form as it is."""
    host, pid = [*owner.split("/"), ""][:2]
    return f"process {pid} on {host}" if pid.isdigit() else owner


def is_gone(owner: str) -> bool:
    """Whether ``owner`` surely no longer runs: a process of this pid namespace that is not there any more.

    Of another container or machine that cannot be known, nor of another user's process that /proc hides from
    this one (proc(5), hidepid): there its lease says when it is over.
    """
    host, pid, started, _, boot, namespace = [*owner.split("/"), *[""] * 6][:6]
    space = _space()
    if not space.known or (host, boot, namespace) != (socket.gethostname(), *space) or not pid.isdigit():
        return False
    now = _started(int(pid))
    if now is None:
        return not _is_hidden(int(pid))
    return started != "None" and now != started


def _space() -> _Space:
    """This process's space; unknown where /proc is another namespace's, and its pids other processes."""
    try:
        if (_PROC / "self").readlink() != Path(str(os.getpid())):
            return _Space(_UNKNOWN, _UNKNOWN)
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip().partition("-")[0]
        namespace = str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return _Space(_UNKNOWN, _UNKNOWN)
    return _Space(boot or _UNKNOWN, namespace)


def _is_hidden(pid: int) -> bool:
    """Whether a process runs of which /proc says nothing."""
    with suppress(OSError):
        (_PROC / str(pid) / "stat").read_text()
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22); None where there is none."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else fields[19]
