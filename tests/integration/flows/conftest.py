"""One Prefect server for all tests of flows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from prefect.testing.utilities import prefect_test_harness

from tests.integration.store.conftest import postgres, postgres_url, template

__all__ = ["postgres", "postgres_url", "template"]


@pytest.fixture(scope="package", autouse=True)
def prefect() -> Iterator[None]:
    """Prefect's own harness: a real server with a database of its own.

    Ray's processes learn its address from the environment; it is gone when the tests elsewhere run.
    """
    before = dict(os.environ)
    with prefect_test_harness(server_startup_timeout=120):
        yield
    os.environ.clear()
    os.environ.update(before)
