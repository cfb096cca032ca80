"""Stores for the contract suite: every test that asks for ``store`` runs on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.store import Store, open_store
from tests.support.postgres import PostgresServer
from tests.support.stores import FakeClock


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """A database with dray's tables, to be cloned."""
    name = postgres.create_database()
    open_store(postgres.url(name)).close()
    return name


@pytest.fixture
def postgres_url(postgres: PostgresServer, template: str) -> str:
    return postgres.url(postgres.create_database(template))


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(store_url: str, clock: FakeClock) -> Iterator[Store]:
    with open_store(store_url, clock=clock, patience=5) as opened:
        yield opened
