"""Where the output of this process goes, for people who look for its log."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path


def own_log() -> str:
    """This machine, and the files of the process's output and errors: Ray gives each worker two."""
    host, files = socket.gethostname(), ", ".join(dict.fromkeys(_files()))
    return f"{host}:{files}" if files else host


def _files() -> list[str]:
    found = []
    for descriptor in (1, 2):
        with suppress(OSError):  # closed, or no /proc here
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_file():
                found.append(str(path))
    return found
