"""What the command line prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import orjson

from dray.cli import terminal
from dray.errors import DrayError, InputError, StoreError
from dray.job import current_job

RUN_LOGGER = "dray.run"
"""The logger of a run without Prefect."""

CLUSTER_LOGGER = "dray.cluster"
"""Says what a rented cluster could not release: that costs until it expires."""

_BEGAN = time.monotonic()
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # but tabs and newlines
_GOES_ON = re.compile(r"then (`dray resume JOB` or the same command goes on|resume( the job)?)(?=$|[ ;,)])")


def print_json(value: Any) -> None:
    """One JSON object on a line of its own, the last of stdout: UTF-8, whatever the locale has."""
    line = orjson.dumps(printable(value)) + b"\n"
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # as in a notebook or a test, which has characters alone
        sys.stdout.write(line.decode())
    else:
        buffer.write(line)
    sys.stdout.flush()


def print_result(value: Any) -> None:
    """Print JSON, also where stdout is gone: the exit code says the same."""
    try:
        print_json(value)
    except OSError as error:
        if not terminal.is_gone(error):
            raise
        terminal.discard(sys.stdout)


def printable(value: Any) -> Any:
    """``value`` with what is not UTF-8 in its texts, as names of files may have it, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {printable(key): printable(part) for key, part in value.items()}
    return [printable(part) for part in value] if isinstance(value, list | tuple) else value


def visible(text: str) -> str:
    """``text`` for a terminal, with control characters written as escapes.

    Names in a row or a file may hold some: a terminal would move its cursor by them, or fill the clipboard.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], printable(text))


def tell(*lines: str) -> None:
    """What was asked for, for people: on stdout, as it would be with ``--json``.

    What the locale's encoding lacks is written as escapes, as Python does on stderr.
    """
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        text = visible(line).encode(encoding, "backslashreplace").decode(encoding)
        sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say(text: str, *, needed: bool = False) -> None:
    """A line for people, beside what was asked for; ``needed`` where it is all that the command is for."""
    terminal.write(visible(text), needed=needed)


def stage(text: str) -> None:
    """A line of a run, with the seconds since its start."""
    say(f"{time.monotonic() - _BEGAN:7.1f}s  {text}")


def explain(error: DrayError) -> None:
    """Why it was refused or failed, each problem on a line of its own.

    A command that runs no job, such as ``dray jobs delete``, has none to resume once its trouble is mended.
    """
    if isinstance(error, InputError):
        say(f"dray: the input cannot be used: {error.total} problem{'s' if error.total != 1 else ''}")
        for line in str(error).split("\n"):
            say(f"  {line}")
        return
    told = str(error)
    if current_job.latest() is None:
        told = _GOES_ON.sub("then give the same command again", told)
    say(f"dray: {told}")
    for note in getattr(error, "__notes__", []):
        say(f"  {note}")
    if isinstance(error, StoreError) and error.address is not None and error.address not in str(error):
        say(f"  the store's address: {error.address}")


class RunLog(logging.Handler):
    """A run's log lines, short, with the time since the start.

    Prefect builds it in place of its console handler, hence the arguments.
    """

    _SHOWN = (RUN_LOGGER, "prefect.flow_runs", "prefect.task_runs", CLUSTER_LOGGER)

    def __init__(self, stream: TextIO | None = None, styles: Mapping[str, str] | None = None) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; tracebacks and Prefect's own notices are left to its UI."""
        if record.exc_info or not record.name.startswith(self._SHOWN):
            return
        if record.levelno < logging.INFO or _of_prefect(record):
            return
        if getattr(record, current_job.PULSE_RECORD, False) and terminal.is_live():
            return  # the bar says it
        name = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        stage(f"{name}{record.getMessage()}")


def _of_prefect(record: logging.LogRecord) -> bool:
    """Whether Prefect itself said it (states, links), and not a task of ours."""
    return f"{os.sep}prefect{os.sep}" in record.pathname
