"""What the command line prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import orjson

from dray.errors import DrayError, InputError


def print_json(value: Any) -> None:
    """One JSON object on a line of its own, the last of stdout."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


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
    """The flow's log lines, short, with the time since the start."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(logging.INFO)
        self._stream = stream or sys.stderr
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.levelno >= logging.ERROR:
            return  # the end of the command says it without a traceback
        name = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        self._stream.write(f"{time.monotonic() - self._began:7.1f}s  {name}{record.getMessage()}\n")
        self._stream.flush()
