"""What a record of a log says."""

from __future__ import annotations

import logging


def message_of(record: logging.LogRecord) -> str:
    """The record's text. Where its arguments do not fit, its place: no handler may raise for that."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  of a library's own objects: any, and the engine is not to end by it
        return f"a line of the log whose text cannot be made, at {record.filename}:{record.lineno}"
