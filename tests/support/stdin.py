"""A process of a test's own ends when its stdin does: also where the test was killed."""

from __future__ import annotations

import sys
import threading


def stdin_ended() -> threading.Event:
    """Set once nothing can come any more."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended
