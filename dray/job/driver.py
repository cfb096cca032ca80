"""Who drives a job: one process, named so that its death can be noticed on the same machine."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path


def driver_name() -> str:
    """A name for this process: host, pid, the process's start time, and something unique."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:8]}"


def is_gone(owner: str) -> bool:
    """Whether ``owner`` surely no longer runs: a process of this host that is not there any more."""
    host, pid, started, _ = [*owner.split("/"), "", "", ""][:4]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    now = _started(int(pid))
    return now is None or (started != "None" and str(now) != started)


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22); None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else fields[19]
