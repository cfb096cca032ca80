"""``dray doctor``: what this machine does with the files of its user."""

from __future__ import annotations

import os
import pwd
import subprocess
from contextlib import suppress
from pathlib import Path

from dray.storage.home import home_folder

_FIRST_USER = 1000  # systemd leaves alone what users below that have in shared memory
_SYSTEMD = Path("/run/systemd/system")
_LINGERING = Path("/var/lib/systemd/linger")
_ASK = [
    *("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"),
    *("org.freedesktop.login1.Manager", "RemoveIPC"),
]


def home() -> str:
    """Whether this user has a home that can be written to.

    Raises:
        ConfigError: there is none.
    """
    folder = home_folder()
    if os.access(folder, os.W_OK | os.X_OK):
        return str(folder)
    return (
        f"{folder} cannot be written to: a run keeps Prefect's database elsewhere; "
        "set HOME to a folder for the caches of vLLM and Hugging Face"
    )


def logout() -> str:
    """Whether the files in shared memory outlast a logout: models, and the locks of nodes and GPUs."""
    number = os.getuid()
    if number < _FIRST_USER or not _SYSTEMD.is_dir():
        return "leaves files in /dev/shm"
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        return "leaves files in /dev/shm"  # a user without a name cannot log in
    if (_LINGERING / name).exists() or _kept_by_systemd():
        return "leaves files in /dev/shm"
    return (
        f"systemd may delete the files of {name} in /dev/shm (models, locks) at the user's last logout, also "
        f"of a job that runs as a service or in a batch system: `loginctl enable-linger {name}`, or "
        "RemoveIPC=no in logind.conf"
    )


def _kept_by_systemd() -> bool:
    """Whether it says that it deletes nothing; where it does not answer, it may."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(_ASK, capture_output=True, timeout=5, check=True).stdout.split() == [
            b"b",
            b"false",
        ]
    return False
