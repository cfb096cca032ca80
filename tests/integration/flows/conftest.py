"""One Prefect server for all tests of flows, or one for each of pytest's processes that runs some."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.store.conftest import postgres, postgres_url, template

__all__ = ["postgres", "postgres_url", "template"]


class _Server:
    """Prefect's own harness: a real server with a database of its own.

    Ray's processes learn its address from the environment; it is gone when the tests elsewhere run.
    """

    def __init__(self) -> None:
        self._running: ExitStack | None = None

    def start(self) -> None:
        from prefect.testing.utilities import (
            prefect_test_harness,  # 2 s of CPU in each process that collects tests
        )

        if self._running is None:
            self._running = ExitStack()
            self._running.callback(_restore, dict(os.environ))
            self._running.enter_context(prefect_test_harness(server_startup_timeout=120))

    def stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


_server = _Server()


@pytest.fixture(scope="module", autouse=True)
def prefect() -> None:
    """The server, for a file of tests."""
    _server.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Stop the server after the last test of this folder: a fixture for it would live as long as pytest."""
    found = yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _server.stop()
    return found


def _restore(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
