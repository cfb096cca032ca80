"""Import large packages faster, or not at all, and none from where dray happens to be started."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import in this block what lives as long as the process: no garbage collection in it or of it.

    The collector walks all of a package's objects again and again while they are made: 1.7 of 5.9 s of
    importing vLLM. What was made is frozen (``gc.freeze``), so that later collections, of which vLLM asks for
    five full ones, do not walk it either: 1.2 of 2.4 s of building a small engine (CPython 3.11, 2 cores).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Import in this block as if these packages were not installed; those that are imported already stay.

    Prefect imports pandas where it finds it, to compare tables that tasks are given: 0.3 s of a core in each
    process. No task of dray's is given one.
    """
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # as Python's import system documents
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def own_program(module: str, function: str = "main") -> list[str]:
    """The begin of a command that runs a function of one of dray's modules in a process of its own.

    Python would look for each module in the current folder first (``-P``: it does not), where the files of a
    downloaded model may be: a ``json.py`` among them would run. dray itself is found last of all, in a
    checkout that is not installed.
    """
    found = f"import sys; sys.path.append({str(Path(__file__).parents[1])!r})"
    return [sys.executable, "-P", "-c", f"{found}; from {module} import {function}; {function}()"]
