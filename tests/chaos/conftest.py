"""What chaos tests share: the figures of each test, gathered for the fault matrix."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from tests.chaos.matrix import Row, keep
from tests.support import history

_ROWS: dict[str, Row] = {}
_PASSED: set[str] = set()
_FAILED: set[str] = set()


@pytest.fixture(autouse=True)
def _measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each job that a test holds against its history counts in the row of that test."""
    name = request.node.originalname
    test = _test_of(request.node.nodeid)
    file = request.node.path.stem.removeprefix("test_")
    row = _ROWS.setdefault(
        test,
        Row(
            file=file,
            fault=name.removeprefix("test_").replace("_", " "),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        ),
    )
    history.observers.append(row.add)
    yield
    history.observers.remove(row.add)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A row is kept only when nothing of its test failed."""
    test = _test_of(report.nodeid)
    if report.failed:
        _FAILED.add(test)
    elif report.when == "call" and report.passed:
        _PASSED.add(test)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the matrix, where that was asked for."""
    if session.config.option.record:
        keep([row for test, row in _ROWS.items() if test in _PASSED - _FAILED])


def _test_of(nodeid: str) -> str:
    """All cases of a test share a row."""
    return nodeid.partition("[")[0]
