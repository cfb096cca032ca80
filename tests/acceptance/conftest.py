"""One Prefect server with a worker for each file of tests of deployments/."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployment import deployed
from tests.support.prefect_server import PrefectServer


@pytest.fixture(scope="module")
def server() -> Iterator[PrefectServer]:
    with deployed() as server:
        yield server
