"""What Prefect logs of refused input and settings: one line, and no traceback of dray's own code."""

from __future__ import annotations

import logging

from dray.errors import RefusedError

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


def log_refusals_briefly() -> None:
    """Log a refusal in one line. The task and the flow still fail by it, and callers get it.

    It tells a user what to change. Prefect would log two chained tracebacks of some hundred lines with it.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_shorten)  # which adds a filter once


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RefusedError):
        record.msg, record.args = "%s: %s", (type(error).__name__, error)
        record.exc_info = record.exc_text = None
    return True
