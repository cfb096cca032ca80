"""One job at a time in a process: Ray is joined once by each, and signals and logs are the process's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dray.errors import ConfigError

_running = threading.Lock()


@contextmanager
def alone() -> Iterator[None]:
    """The block is a job's run.

    Raises:
        ConfigError: another one is under way in this process.
    """
    if not _running.acquire(blocking=False):
        raise ConfigError(
            "another job runs in this process, which joins Ray once: await or finish that one first, or "
            "start a process for each job (a deployment's runs have one each)"
        )
    try:
        yield
    finally:
        _running.release()
