"""The thread beside the driver that gives rows the outcome of those that they follow: how often it looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from dray.errors import DrayError, FencedError, StoreFatalError, StoreTransientError, StoreUnreachableError
from dray.job.rows import following
from dray.store.records import Followed
from tests.support.clocks import replace_here

pytestmark = pytest.mark.unit


class _Stop(threading.Event):
    """Notes how long the thread waits between sweeps, and lets it make so many."""

    def __init__(self, sweeps: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._sweeps = sweeps

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return len(self.pauses) > self._sweeps


def _pauses(monkeypatch: pytest.MonkeyPatch, sweeps: Sequence[tuple[float, int]]) -> list[float]:
    """Between sweeps that take so many seconds, in two pages, and find so many rows."""
    pages = iter([(seconds / 2, rows if last else 0, last) for seconds, rows in sweeps for last in (0, 1)])
    passed = 0.0

    class Store:
        def answer_followers(self, lease: object, after: int) -> Followed:
            nonlocal passed
            seconds, rows, last = next(pages)
            passed += seconds
            return Followed(rows=rows, after=None if last else after + 1)

    job: Any = type("Job", (), {"lease": None})
    monkeypatch.setattr(following, "reopen", lambda _, **__: nullcontext(Store()))
    replace_here(monkeypatch, time, "monotonic", lambda: passed)
    stop = _Stop(len(sweeps))
    following._follow(job, stop)
    return stop.pauses


def test_pauses_grow_while_no_row_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [(0.1, 0)] * 6 + [(0.1, 5)]
    assert _pauses(monkeypatch, quick) == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 2.0]


def test_a_long_sweep_is_followed_by_a_pause_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(monkeypatch, [(50.0, 1), (90.0, 0), (0.5, 1)]) == [2.0, 50.0, 90.0, 2.0]


@pytest.mark.parametrize("ends", [FencedError("another driver"), StoreFatalError("the disk is full")])
def test_a_store_that_is_away_is_waited_for_and_a_driver_that_ends_is_not(
    ends: DrayError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver bears an outage for half an hour: rows that follow others are answered after it, too."""
    away = StoreTransientError("connection lost")
    opened: list[DrayError | None] = [None, StoreUnreachableError("no connection"), None]
    swept: list[DrayError | None] = [None, away, None, ends]

    class Store:
        def answer_followers(self, lease: object, after: int) -> Followed:
            tell(swept)
            return Followed(rows=1, after=None)

    def tell(errors: list[DrayError | None]) -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    def reopen(*_: object, **__: object) -> Any:
        tell(opened)
        return nullcontext(Store())

    monkeypatch.setattr(following, "reopen", reopen)
    job: Any = type("Job", (), {"lease": None})
    stop = _Stop(20)
    following._follow(job, stop)
    assert (opened, swept) == ([], [])
    assert stop.pauses == [2.0, 2.0, 30.0, 30.0, 2.0, 2.0]
