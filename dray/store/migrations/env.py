"""Alembic's entry: runs migrations on the connection and in the transaction that ``migrate.py`` opened."""

from __future__ import annotations

from alembic import context

from dray.store.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=False,  # the caller's transaction spans everything
)
context.run_migrations()
