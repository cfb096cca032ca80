"""One Prefect server for all tests of flows, that of the commands in each of pytest's processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.store.conftest import postgres, postgres_url, template
from tests.support.command import prefect_api

__all__ = ["postgres", "postgres_url", "template"]


@pytest.fixture(scope="module", autouse=True)
def prefect() -> Iterator[None]:
    """The server, for a file of tests; Ray's processes learn its address from the environment."""
    from prefect.settings import (  # 2 s of CPU in each process that collects tests
        PREFECT_API_URL,
        temporary_settings,
    )

    with pytest.MonkeyPatch.context() as patch, temporary_settings({PREFECT_API_URL: prefect_api()}):
        patch.setenv("PREFECT_API_URL", prefect_api())
        yield
