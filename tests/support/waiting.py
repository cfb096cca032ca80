"""Wait for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Ask again and again; AssertionError where it does not come about in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come within {seconds:.0f} s"
        time.sleep(0.05)
