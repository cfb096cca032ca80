"""Ray's workers that are at work, known by the titles that Ray gives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

_AT_REST = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def is_replica(process: psutil.Process) -> bool:
    """Whether a process is a replica's, by its title: ``ray::Replica`` or ``ray::NAME:Replica.__init__``."""
    return is_at_work(process) and "Replica" in _title(process)


def is_at_work(process: psutil.Process) -> bool:
    """Whether a process is of an actor or a task that runs, and none of Ray's own agents.

    Raises:
        psutil.Error: it has ended, or belongs to another user.
    """
    title = _title(process)
    busy = title.startswith("ray::") and not title.startswith(_AT_REST)
    return busy and process.status() != psutil.STATUS_ZOMBIE


def at_work(processes: Iterable[psutil.Process]) -> dict[psutil.Process, str]:
    """Those of ``processes`` that still run an actor or a task, with their titles."""
    found = {}
    for process in processes:
        try:
            if process.is_running() and is_at_work(process):
                found[process] = _title(process)
        except psutil.Error:  # it ended
            continue
    return found


def await_none(seconds: float, workers: Callable[[], dict[psutil.Process, str]]) -> None:
    """Wait until no worker is at work; those that still are after ``seconds`` are ended.

    Raises:
        AssertionError: some were; it names their processes by title.
    """
    deadline = time.monotonic() + seconds
    while left := workers():
        if time.monotonic() > deadline:
            for process in left:
                process.kill()
            named = {process.pid: title for process, title in left.items()}
            raise AssertionError(f"I7: actors or tasks are left after {seconds:.0f} s: {named}")
        time.sleep(0.2)


def _title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
