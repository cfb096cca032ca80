"""Small reads of a model's origin, which a server that is busy for a moment does not end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from dray.storage.objects import ReplacedError

_WAITS = (0.5, 1.0, 2.0)  # seconds at most before the next try

Read = TypeVar("Read")


def with_retries(read: Callable[[], Read]) -> Read:
    """What ``read`` gives, tried again where the server or the network fails.

    Raises:
        FileNotFoundError, PermissionError, ReplacedError: at once; another try finds the same.
        OSError: the last try's.
    """
    for wait in _WAITS:
        try:
            return read()
        except (FileNotFoundError, PermissionError, ReplacedError):
            raise
        except OSError:
            time.sleep(random.uniform(0, wait))  # noqa: S311  spreads load, guards nothing
    return read()
