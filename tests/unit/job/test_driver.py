"""The name of a driver, and how its death is noticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from dray.job.driver import driver_name, is_gone

pytestmark = pytest.mark.unit


def _name_of(pid: int) -> str:
    started = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return f"{socket.gethostname()}/{pid}/{started}/0"


def test_this_process_is_there() -> None:
    assert not is_gone(driver_name())
    assert driver_name() != driver_name()


def test_a_killed_process_is_gone_even_as_a_zombie() -> None:
    process = subprocess.Popen(["sleep", "60"])
    name = _name_of(process.pid)
    assert not is_gone(name)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert is_gone(name)
    process.wait()
    assert is_gone(name)


def test_a_pid_that_was_given_to_another_process_is_another_driver() -> None:
    host, pid, started, unique = driver_name().split("/")
    assert is_gone(f"{host}/{pid}/{int(started) - 1}/{unique}")


@pytest.mark.parametrize("owner", ["elsewhere/1/2/3", "", "driver", f"{socket.gethostname()}/x/1/2"])
def test_nothing_is_known_of_other_machines(owner: str) -> None:
    assert not is_gone(owner)
