"""How many connections PostgreSQL allows to a job, where it is PostgreSQL that counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.store.database.connection import Tx

_LEAST_SHARE = 2
"""Other programs' connections come and go, so they take no more than one part in so many of a limit."""

# Superusers are exempt from the limits of roles and databases; -1 stands for no limit. Connections of this
# name are dray's: those of this job are counted by its driver, and those of other jobs end with them. A role
# without rights reads no backend_type of others, and background workers have no database.
_LIMITS = """
WITH mine AS (
    SELECT rolsuper, rolconnlimit FROM pg_roles WHERE rolname = session_user
), others AS (
    SELECT datname, usename FROM pg_stat_activity
    WHERE application_name IS DISTINCT FROM current_setting('application_name')
    AND datname IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
)
SELECT
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0),
    (SELECT count(*) FROM others),
    (SELECT CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END FROM mine),
    (SELECT count(*) FROM others WHERE usename = session_user),
    (SELECT CASE WHEN rolsuper THEN -1 ELSE datconnlimit END FROM mine, pg_database
        WHERE datname = current_database()),
    (SELECT count(*) FROM others WHERE datname = current_database())
"""
_NAMES = (
    "its max_connections",
    "the CONNECTION LIMIT of the role",
    "the CONNECTION LIMIT of the database",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimit:
    """A job may have ``most`` connections; more where ``by`` is raised. ``others`` are other programs'."""

    most: int
    by: str
    others: int = 0


def most_connections(tx: Tx) -> ConnectionLimit | None:
    """Connections that PostgreSQL leaves to dray, by the tightest of its limits.

    None for SQLite, which counts none, and behind a pooler: there many clients share one connection of the
    server, and how many clients it takes is the pooler's own limit.
    """
    if tx.dialect != "postgresql" or _is_pooled(tx):
        return None
    found = list(tx.connection.exec_driver_sql(_LIMITS).one())
    limits = zip(_NAMES, found[::2], found[1::2], strict=True)
    return min(
        (_left(most, others, name) for name, most, others in limits if most >= 0),
        key=lambda one: one.most,
    )


def _left(most: int, others: int, name: str) -> ConnectionLimit:
    return ConnectionLimit(most=max(most - others, most // _LEAST_SHARE), by=name, others=others)


def _is_pooled(tx: Tx) -> bool:
    """Whether a pooler such as PgBouncer stands before the server: it gives clients ids of its own."""
    driver: Any = tx.connection.connection.driver_connection
    served_by = tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    return bool(driver.info.backend_pid != served_by)
