"""Reads of what lies elsewhere, and writes, which a server that is busy for a moment does not end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dray.storage.faults import BusyError, ReplacedError

_WAITS = (0.5, 1.0, 2.0)  # seconds at most before the next try
PATIENCE = (*_WAITS, 4.0, 8.0, 16.0, 30.0)
"""The same where more is at stake: of a long input, much is read already."""
LONGEST_PAUSE = 120.0
"""Seconds that dray waits at most where a server says how long (Retry-After)."""
_TOLD_FROM = 5.0

_logger = logging.getLogger(__name__)


Read = TypeVar("Read")


def with_retries(
    read: Callable[[], Read], waits: Sequence[float] | None = None, *, of: type[OSError] = OSError
) -> Read:
    """What ``read`` gives, tried again where the server or the network fails, after up to ``waits`` seconds.

    Raises:
        FileNotFoundError, PermissionError, ReplacedError: at once; another try finds the same.
        OSError: the last try's; at once one that is not ``of`` the kind that is waited for.
    """
    for wait in _WAITS if waits is None else waits:
        try:
            return read()
        except (FileNotFoundError, PermissionError, ReplacedError):
            raise
        except of as error:
            pause = random.uniform(0, wait)  # noqa: S311  spreads load, guards nothing
            if isinstance(error, BusyError):
                pause += min(error.after or 0.0, LONGEST_PAUSE)
                tell_pause(str(error), pause)
            time.sleep(pause)
    return read()


def while_busy(read: Callable[[], Read]) -> Read:
    """What ``read`` gives, tried again only where the server says that it is busy.

    For what is asked first: a server that does not answer at all may be none.
    """
    return with_retries(read, PATIENCE, of=BusyError)


def tell_pause(told: str, seconds: float) -> None:
    """Say that a server wants to be asked later, where that takes a while."""
    if seconds >= _TOLD_FROM:
        _logger.warning("%s: the server wants to be asked again in %.0f s; dray waits", told, seconds)
