"""Each error of the databases has one meaning, and none quotes what it was about."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import CompileError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dray.errors import StoreError, StoreFatalError, StoreRefusedError, StoreTransientError
from dray.store.database.seam import translate

pytestmark = pytest.mark.unit


def of_sqlite(code: int) -> StoreError:
    error = sqlite3.OperationalError("canary")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_X"
    wrapped = OperationalError("INSERT canary", ("canary",), error)
    assert type(translate(error, "u")) is type(translate(wrapped, "u"))
    return translate(wrapped, "u")


def of_postgres(state: str | None, *, name: str = "OperationalError", lost: bool = False) -> StoreError:
    error = type(name, (Exception,), {"sqlstate": state})("canary")
    wrapped = ProgrammingError("INSERT canary", ("canary",), error, connection_invalidated=lost)
    return translate(wrapped, "u")


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, 517])  # 517: BUSY_SNAPSHOT
def test_locks_of_sqlite_pass(code: int) -> None:
    assert isinstance(of_sqlite(code), StoreTransientError)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (sqlite3.SQLITE_FULL, "disk is full"),
        (sqlite3.SQLITE_READONLY, "read-only"),
        (sqlite3.SQLITE_CANTOPEN, "cannot be opened"),
        (sqlite3.SQLITE_NOTADB, "not an SQLite database"),
        (sqlite3.SQLITE_CORRUPT, "damaged"),
        (sqlite3.SQLITE_IOERR_WRITE, "disk reported an error"),
        (sqlite3.SQLITE_ERROR, "SQLITE_X"),
    ],
)
def test_the_rest_of_sqlite_does_not(code: int, says: str) -> None:
    error = of_sqlite(code)
    assert isinstance(error, StoreFatalError)
    assert says in str(error)


@pytest.mark.parametrize(
    "state", ["08006", "08001", "57P01", "57P02", "57P03", "40001", "40P01", "53300", "55P03"]
)
def test_states_worth_another_try(state: str) -> None:
    assert isinstance(of_postgres(state), StoreTransientError)


def test_a_statement_that_was_cancelled_names_the_limit_that_another_may_have_set() -> None:
    error = of_postgres("57014")
    assert isinstance(error, StoreTransientError)
    assert "statement_timeout of the role or the database" in str(error)


def test_a_statement_without_memory_may_have_it_later() -> None:
    """One of hundreds of backends had none for one statement, and the whole job was paused."""
    error = of_postgres("53200")
    assert isinstance(error, StoreTransientError)
    assert "lacks memory for a statement: give it more, or fewer connections" in str(error)


def test_a_transaction_that_the_role_gives_too_little_time_is_tried_again() -> None:
    assert isinstance(of_postgres("25P04"), StoreTransientError)  # transaction_timeout, of PostgreSQL 17


def test_a_server_that_is_read_only_may_be_in_a_failover() -> None:
    error = of_postgres("25006")
    assert isinstance(error, StoreTransientError)
    assert "read-only (a standby, or a failover under way?): use the primary" in str(error)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("53100", "disk is full"),
        ("42P01", "table is missing"),
        ("42501", "lacks a right"),
        ("28P01", "user or password"),
        ("3D000", "create it"),
        ("22P05", "SQLSTATE 22P05"),
    ],
)
def test_states_that_need_somebody(state: str, says: str) -> None:
    error = of_postgres(state)
    assert isinstance(error, StoreFatalError)
    assert says in str(error)


def test_lost_connections_have_no_state() -> None:
    assert isinstance(of_postgres(None), StoreTransientError)
    assert isinstance(of_postgres(None, name="DataError", lost=True), StoreTransientError)
    assert isinstance(of_postgres(None, name="DataError"), StoreFatalError)
    assert isinstance(translate(PoolTimeoutError("canary"), "u"), StoreTransientError)
    assert isinstance(translate(CompileError("canary"), "u"), StoreFatalError)


def of_connecting(text: str) -> StoreError:
    at = 'connection failed: connection to server at "10.0.0.7", port 5432 failed: '
    error = type("OperationalError", (Exception,), {"sqlstate": None})(at + text)
    return translate(OperationalError("", (), error), "u")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('FATAL:  password authentication failed for user "canary"', "refused the user or password"),
        ("fe_sendauth: no password supplied", "refused the user or password"),
        ('FATAL:  role "canary" does not exist', "refused the user or password"),
        ("FATAL:  SASL authentication failed", "refused the user or password"),  # PgBouncer, with SCRAM
        ("FATAL:  no such user: canary", "refused the user or password"),  # PgBouncer
        ('FATAL:  database "canary" does not exist', "database does not exist: create it"),
        ("FATAL:  no such database: canary", "database does not exist: create it"),
        (
            'FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "canary", database "x", no encryption',
            "pg_hba.conf admits no such connection",
        ),
        ('FATAL:  permission denied for database "canary"', "lacks a right"),
        (  # localhost has two addresses, and the server listens at one
            'Connection refused\nconnection to server at "127.0.0.1", port 5432 failed: '
            'FATAL:  password authentication failed for user "canary"',
            "refused the user or password",
        ),
    ],
)
def test_a_server_that_refuses_a_connection_says_why(text: str, says: str) -> None:
    error = of_connecting(text)
    assert isinstance(error, StoreRefusedError)
    assert says in str(error)
    assert not [word for word in ("canary", "10.0.0") if word in str(error)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FATAL:  sorry, too many clients already", "max_connections"),
        ('FATAL:  too many connections for role "canary"', "the role has no connection left: raise its CONN"),
        ('FATAL:  too many connections for database "canary"', "the database has no connection left"),
        ("FATAL:  no more connections allowed (max_client_conn)", "(max_client_conn)"),  # PgBouncer
        ("FATAL:  client connections exceeded (max_db_client_connections)", "the pooler takes no more"),
        (
            "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
            "max_connections",
        ),
        ("FATAL:  the database system is starting up", "starting"),
        ("FATAL:  canary Authentifizierung für Benutzer »canary« fehlgeschlagen", "failed or was lost"),
        ('FATAL:  LDAP authentication failed for user "canary"', "failed or was lost"),
        ("Connection refused", "failed or was lost"),
        (  # two servers
            "FATAL:  the database system is shutting down\nconnection to server failed: "
            'FATAL:  database "canary" does not exist',
            "starting, stopping or recovering",
        ),
    ],
)
def test_a_server_that_may_take_a_connection_later_is_away(text: str, says: str) -> None:
    error = of_connecting(text)
    assert isinstance(error, StoreTransientError)
    assert says in str(error)
    assert not [word for word in ("canary", "10.0.0") if word in str(error)]


def test_no_message_quotes_a_row() -> None:
    for error in (
        of_sqlite(sqlite3.SQLITE_FULL),
        of_postgres("53100"),
        translate(CompileError("canary"), "u"),
    ):
        assert "canary" not in str(error)
        assert str(error).startswith("store u: ")
