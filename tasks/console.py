"""Prefect's log on a stream that has no reader any more: its worker was killed, or ``head`` has ended."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial

from prefect.logging.handlers import PrefectConsoleHandler


def outlive_readers() -> None:
    """Let what this process logs to a broken pipe go nowhere; Prefect's server gets its lines.

    Its console would raise SystemExit in the thread that logs, which ended the job.
    """
    loggers = [logging.getLogger(), *list(logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):  # a name that stands for others has none
            if isinstance(handler, PrefectConsoleHandler):
                to_nowhere = partial(_to_nowhere, handler)
                handler.console.on_broken_pipe = to_nowhere  # type: ignore[method-assign]  # it has no setting


def _to_nowhere(handler: PrefectConsoleHandler) -> None:
    handler.console.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # a stream that is no file
        os.dup2(nowhere, handler.stream.fileno())  # warnings and libraries write there, too
    os.close(nowhere)
