"""Engines that share a GPU start one after the other. Imports no engine.

A starting vLLM counts all memory that the GPU has lost since as its own: with a second engine starting
beside it, it finds no room for its KV cache. So an engine's turn lasts until it has computed a full step.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dray.temporary import lock_file, open_lock

logger = logging.getLogger(__name__)


def shares_gpu(gpus: float | None) -> bool:
    """Whether a replica that has ``gpus`` has a part of one."""
    return gpus is not None and 0 < gpus < 1


@contextmanager
def turn_on(gpus: float | None) -> Iterator[None]:
    """Alone among this user's engines that start on a part of the same GPU; ``gpus`` is what the replica has.

    A process that dies gives its turn back. Where another user made the file of the lock, no engine waits.
    """
    lock = _opened() if shares_gpu(gpus) else None
    if lock is None:
        yield
        return
    with os.fdopen(lock, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting: another engine on this GPU is starting")
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too


def _opened() -> int | None:
    path = _lock_file()
    try:
        return open_lock(path)
    except OSError as error:
        told = "engines on this GPU do not wait for each other to start: %s: %s; have it removed"
        logger.warning(told, path, error.strerror)
        return None


def _lock_file() -> Path:
    """Ray says by this variable which GPU the replica shares."""
    device = re.sub(r"[^\w.-]", "_", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    return lock_file(f"gpu-{device}")
