"""What the command line prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import orjson

from dray.errors import DrayError, InputError


def print_json(value: Any) -> None:
    """One JSON object on a line of its own, the last of stdout."""
    sys.stdout.write(orjson.dumps(printable(value)).decode() + "\n")
    sys.stdout.flush()


def printable(value: Any) -> Any:
    """``value`` with what is not UTF-8 in its texts, as names of files may have it, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {printable(key): printable(part) for key, part in value.items()}
    return [printable(part) for part in value] if isinstance(value, list | tuple) else value


def say(text: str) -> None:
    """A line for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def explain(error: DrayError) -> None:
    """Why it was refused or failed, each problem on a line of its own."""
    if isinstance(error, InputError):
        say(f"dray: the input cannot be used: {error.total} problem{'s' if error.total != 1 else ''}")
        for line in str(error).splitlines():
            say(f"  {line}")
        return
    say(f"dray: {error}")


class RunLog(logging.Handler):
    """The flow's log lines, short, with the time since the start.

    Prefect builds it in place of its console handler, hence the arguments.
    """

    _SHOWN = ("prefect.flow_runs", "prefect.task_runs")
    began = time.monotonic()

    def __init__(self, stream: TextIO | None = None, styles: Mapping[str, str] | None = None) -> None:
        super().__init__(logging.INFO)
        self._stream = stream or sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; tracebacks and Prefect's own notices are left to its UI."""
        if record.exc_info or not record.name.startswith(self._SHOWN):
            return
        if record.levelno < logging.INFO or _of_prefect(record):
            return
        name = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        line = f"{time.monotonic() - self.began:7.1f}s  {name}{record.getMessage()}"
        self._stream.write(line + "\n")
        self._stream.flush()


def _of_prefect(record: logging.LogRecord) -> bool:
    """Whether Prefect itself said it (states, links), and not a task of ours."""
    return f"{os.sep}prefect{os.sep}" in record.pathname
