"""How many connections PostgreSQL allows, where it is PostgreSQL that counts them."""

from __future__ import annotations

from typing import Any

from dray.store.database.connection import Tx


def most_connections(tx: Tx) -> int | None:
    """Connections that the database's users may have.

    None for SQLite, which counts none, and behind a pooler: there many clients share one connection of the
    server, and how many clients it takes is the pooler's own limit.
    """
    if tx.dialect != "postgresql" or _is_pooled(tx):
        return None
    names = ("max_connections", "superuser_reserved_connections")
    most, reserved = (int(tx.connection.exec_driver_sql(f"SHOW {name}").scalar_one()) for name in names)
    return most - reserved


def _is_pooled(tx: Tx) -> bool:
    """Whether a pooler such as PgBouncer stands before the server: it gives clients ids of its own."""
    driver: Any = tx.connection.connection.driver_connection
    served_by = tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    return bool(driver.info.backend_pid != served_by)
