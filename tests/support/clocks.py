"""Stand-ins for functions of the process that one thread alone sees.

A test that replaces ``time.monotonic`` replaces it for every thread of its process. Threads that other tests,
Ray or Prefect left there would then live by its clock, and it would count their calls as its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
R = TypeVar("R")


def replace_here(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, stand_in: Callable[P, R]
) -> None:
    """Have calls of ``module.name`` by this thread reach ``stand_in``; other threads call the real one."""
    real: Callable[P, R] = getattr(module, name)
    mine = threading.get_ident()

    def either(*args: P.args, **kwargs: P.kwargs) -> R:
        return (stand_in if threading.get_ident() == mine else real)(*args, **kwargs)

    monkeypatch.setattr(module, name, either)


class Clocks:
    """The machine's clock, which may be set, and one that only moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.passed = 1.8e9, 500.0
        replace_here(monkeypatch, time, "time", lambda: self.wall)
        replace_here(monkeypatch, time, "clock_gettime", lambda _: self.passed)

    def go_on(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds
