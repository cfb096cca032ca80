"""What the files of a row may take once they are decoded: next to nothing in a file may be gigabytes then.

A thread reads one row at a time, and counts what it decodes of it.
"""

from __future__ import annotations

import threading
from collections import Counter

from dray.errors import RequestRefused
from dray.requests.media.medium import Medium

ROW_BYTES = 1 << 30
"""What the images of one row may have together once decoded; its sounds; and the frames of its videos."""

_row = threading.local()


def begin_row() -> None:
    """Begin to count: what this thread decodes now is another row's, or the same row's once more."""
    _row.sizes = Counter()


def add(medium: Medium, size: int, advice: str = "") -> None:
    """Count more bytes of the row; ``advice`` says what helps where they are too many.

    Raises:
        RequestRefused: they are too many.
    """
    if not hasattr(_row, "sizes"):
        begin_row()
    _row.sizes[medium] += size
    if _row.sizes[medium] > ROW_BYTES:
        told = f"the row's {medium.name}s have over {ROW_BYTES:,} bytes once they are decoded{advice}"
        raise RequestRefused("request_too_large", told, param="messages")
