"""What chaos tests share: the figures of each test, gathered for the fault matrix."""

from __future__ import annotations

import datetime
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest

from dray.history import FOLDER_VARIABLE
from tests.chaos.matrix import Row, keep
from tests.support import history
from tests.support.ray_workers import await_none
from tests.support.raylets import Raylets
from tests.support.spot_nodes import SpotNodes

# A failed assert there shows its values, as in a test.
pytest.register_assert_rewrite("tests.chaos.resumed_job", "tests.chaos.resumed_command")

_ROWS: dict[str, Row] = {}
_PASSED: set[str] = set()
_FAILED: set[str] = set()
_GONE_SECONDS = 20.0


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


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    """No process of a test's jobs outlives it."""
    yield
    deadline = time.monotonic() + _GONE_SECONDS
    while left := _processes(tmp_path):
        assert time.monotonic() < deadline, f"I7: left behind: {left}"
        time.sleep(0.2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """No actor and no task outlives a test, on any node of a cluster that its jobs were given.

    Looked for here, since a fixture of the test alone stops its cluster before ``_nothing_left`` looks. That
    finds no worker either whose environment lacks the folder of the history.
    """
    result = yield
    for raylets in Raylets.running:
        await_none(_GONE_SECONDS, raylets.workers)
    return result


@pytest.fixture(scope="module")
def whole_cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpotNodes]:
    """As many spot nodes beside a head as the module's ``SPOT`` says."""
    found = SpotNodes.beside_a_head(tmp_path_factory.mktemp("raylets"), request.module.SPOT)
    yield found
    found.close()


@pytest.fixture
def cloud(whole_cloud: SpotNodes) -> SpotNodes:
    """None of them touched by the test before."""
    whole_cloud.refill()
    return whole_cloud


def _processes(folder: Path) -> dict[str, str]:
    """Drivers, replicas and tasks of jobs whose history is in ``folder``, by pid; not the test itself."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(FOLDER_VARIABLE, "").startswith(str(folder)):
                found[str(process.pid)] = " ".join(process.cmdline())[:80]
        except psutil.Error:  # it ended, or belongs to another user
            continue
    return found


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
        passed = _PASSED - _FAILED
        keep(
            [row for test, row in _ROWS.items() if test in passed],
            [row for test, row in _ROWS.items() if test in _FAILED],
        )


def _test_of(nodeid: str) -> str:
    """All cases of a test share a row."""
    return nodeid.partition("[")[0]
