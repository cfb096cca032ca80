"""Reads of a model's origin or of an input, which a server that is busy for a moment does not end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dray.storage.objects import ReplacedError

_WAITS = (0.5, 1.0, 2.0)  # seconds at most before the next try
LONGEST_PAUSE = 120.0
"""Seconds that dray waits at most where a server says how long (Retry-After)."""
_TOLD_FROM = 5.0

_logger = logging.getLogger(__name__)


class BusyError(OSError):
    """A server wants to be asked later: in ``after`` seconds, where it says so."""

    def __init__(self, told: str, after: float | None = None) -> None:
        super().__init__(told)
        self.after = after


Read = TypeVar("Read")


def with_retries(read: Callable[[], Read], waits: Sequence[float] | None = None) -> Read:
    """What ``read`` gives, tried again where the server or the network fails, after up to ``waits`` seconds.

    Raises:
        FileNotFoundError, PermissionError, ReplacedError: at once; another try finds the same.
        OSError: the last try's.
    """
    for wait in _WAITS if waits is None else waits:
        try:
            return read()
        except (FileNotFoundError, PermissionError, ReplacedError):
            raise
        except OSError as error:
            pause = random.uniform(0, wait)  # noqa: S311  spreads load, guards nothing
            if isinstance(error, BusyError) and error.after is not None:
                pause += min(error.after, LONGEST_PAUSE)
                tell_pause(str(error), pause)
            time.sleep(pause)
    return read()


def tell_pause(told: str, seconds: float) -> None:
    """Say that a server wants to be asked later, where that takes a while."""
    if seconds >= _TOLD_FROM:
        _logger.warning("%s: the server wants to be asked again in %.0f s; dray waits", told, seconds)
