"""What a job's processes say they did, kept outside the database, so that tests can hold the two together.

Off unless ``DRAY_HISTORY_DIR`` names a folder when this module is imported. Then each process appends to one
file there, one JSON object per line, on the disk before the call returns::

    {"event": "ack", "job": ..., "shard": 0, "epoch": 1, "indexes": [...], "at": ..., "pid": ...}

``at`` is this machine's monotonic clock in nanoseconds: an order over all processes of one boot.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Protocol

FOLDER_VARIABLE = "DRAY_HISTORY_DIR"

_folder = os.environ.get(FOLDER_VARIABLE)  # None in production
_guard = threading.Lock()
_file: tuple[int, int] | None = None  # whose (pid) and its descriptor: a forked child starts its own


class Event(StrEnum):
    """What is noted, always with the indexes of rows."""

    ADMITTED = "admitted"
    """These rows are about to enter the engine."""
    INTENT = "intent"
    """These rows are about to be committed."""
    ACK = "ack"
    """The commit of these rows has returned: from here on they must never vanish."""


class _Lease(Protocol):
    @property
    def job_id(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class _Row(Protocol):
    @property
    def index(self) -> int: ...


def intent(lease: _Lease, rows: Iterable[_Row]) -> None:
    """Rows are about to be committed under a lease."""
    if _folder is not None:
        note(Event.INTENT, lease.job_id, lease.number, lease.epoch, [row.index for row in rows])


def ack(lease: _Lease, rows: Iterable[_Row]) -> None:
    """The commit of these rows has returned."""
    if _folder is not None:
        note(Event.ACK, lease.job_id, lease.number, lease.epoch, [row.index for row in rows])


def admitted(session: str, rows: Iterable[_Row]) -> None:
    """Rows are about to enter an engine, for the session ``JOB/SHARD/EPOCH``."""
    if _folder is not None:
        job, shard, epoch = session.rsplit("/", 2)
        note(Event.ADMITTED, job, int(shard), int(epoch), [row.index for row in rows])


def note(event: Event, job: str, shard: int, epoch: int, indexes: Iterable[int]) -> None:
    """Append one line, and wait until it is on the disk."""
    if _folder is None:
        return
    with _guard:
        line = {
            "event": event,
            "job": job,
            "shard": shard,
            "epoch": epoch,
            "indexes": list(indexes),
            "at": time.monotonic_ns(),
            "pid": os.getpid(),
        }
        file = _own(Path(_folder))
        # One write: of a process that is killed, at most the last line is cut short.
        os.write(file, json.dumps(line).encode() + b"\n")
        os.fsync(file)


def _own(folder: Path) -> int:
    global _file
    if _file is None or _file[0] != os.getpid():
        folder.mkdir(parents=True, exist_ok=True)
        # Pids come round: the name has something more.
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.history"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        _file = os.getpid(), os.open(path, flags, 0o666)
    return _file[1]
