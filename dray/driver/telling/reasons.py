"""Why a job ended, as its store keeps it. Prefect's pages and events show it too: it quotes no row."""

from __future__ import annotations

import re

from dray.errors import DrayError, EngineError, EngineStartError, InputError, Problem, first_line, raised_at
from dray.job.driverless import INPUT_REFUSED
from dray.storage.addresses import HUB
from dray.storage.files import FULL, is_full
from dray.storage.remote import is_remote

_MOST = 1000  # characters of a line
_LOGIN = re.compile(r"(\w://)[^\s/@]*@")


def reason_of(error: Exception) -> str:
    """What happened, and where. An error that is not dray's is named by class and line: it may quote rows.

    Dray's own say nothing secret. An engine's may hold what others wrote of an address: logins are masked.
    """
    if isinstance(error, InputError):
        return _refused(error)
    if isinstance(error, EngineError) and not isinstance(error, EngineStartError):
        return type(error).__name__  # of a request, or of one replica: the causes say what became of it
    if not isinstance(error, DrayError) and is_full(error):
        return FULL
    if not isinstance(error, DrayError):
        return f"{type(error).__name__}{raised_at(error)}"
    line = first_line(error, _MOST)
    return _LOGIN.sub(r"\1***@", line) or type(error).__name__


def _refused(error: InputError) -> str:
    """The first problem by file, line and code: its message is for the terminal."""
    if not error.problems:
        return INPUT_REFUSED
    more = f", and {error.total - 1:,} more" if error.total > 1 else ""
    return f"{INPUT_REFUSED}: {_place(error.problems[0])}{more}"


def _place(problem: Problem) -> str:
    file = problem.file
    if file is not None and "://" in file and not (is_remote(file) or file.startswith(("file:", HUB))):
        file = "the query"  # a database's address names a user and a host
    place = ":".join(str(part) for part in (file, problem.line) if part is not None)
    return _LOGIN.sub(r"\1***@", f"{place}: {problem.code}" if place else problem.code)
