"""Stores with the schema of an older dray."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, inspect

import dray.store
from dray.store.database.urls import parse_url


def made_by_older(url: str, revision: str) -> None:
    """Make the tables as they were at a migration, in a database that has none."""
    config = Config()
    config.set_main_option("script_location", str(Path(dray.store.__file__).parent / "migrations"))
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        config.attributes["version_table"] = "alembic_version"  # as until 0012
        command.upgrade(config, revision)
    engine.dispose()


def revision_of(url: str) -> str:
    """The migration that a store says it is at."""
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        moved = inspect(connection).has_table("dray_version")
        table = "dray_version" if moved else "alembic_version"
        found: str = connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar_one()
    engine.dispose()
    return found
