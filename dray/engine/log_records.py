"""What a record of a log says."""

from __future__ import annotations

import logging


def message_of(record: logging.LogRecord) -> str:
    """The record's text; without its arguments where these do not fit, for which no handler may raise."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  of a library's own objects: any, and the engine is not to end by it
        return f"{record.msg} (arguments that do not fit)"
