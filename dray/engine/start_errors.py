"""What an engine that did not start, or a part that ended, says in one line for people."""

from __future__ import annotations

from copy import copy

from dray.errors import DrayError, EngineStartError, raised_at
from dray.failures.signs import out_of_memory

_LONGEST = 800  # characters of an engine's own message


def in_one_line(said: str) -> str:
    """What an engine said, in one line, and not too long."""
    return " ".join(said.split())[:_LONGEST]


def start_error(error: BaseException) -> DrayError:
    """The error of a start as others are told of it: one of dray's as it is, another by class and line."""
    if isinstance(error, DrayError):
        return error
    line = (str(error).splitlines() or [""])[0][:500] or f"no reason given{raised_at(error)}"
    return EngineStartError(f"{type(error).__name__}: {line}", oom=out_of_memory(error))


def with_log(error: DrayError, log: str) -> DrayError:
    """The same error, which also says where the log is."""
    told = copy(error)
    told.args = (f"{error}; its log: {log}", *error.args[1:])
    return told
