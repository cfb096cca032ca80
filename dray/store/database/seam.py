"""The one place where errors of SQLAlchemy and its drivers become dray's.

Which code means what follows the rows STORE_TRANSIENT and STORE_FATAL of the table of causes:
lost connections, server restarts, failovers, serialisation, deadlocks and locks are worth another try.
An operator has to act on a full disk, a missing table or right, a refused user, and a read-only file.

Messages carry the driver's code and the store's name, without user and host: they go to Prefect and
into events. They never carry SQL parameters, which hold answers, nor the driver's own detail lines,
which may quote them.
"""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dray.errors import (
    NoConnectionError,
    StoreError,
    StoreFatalError,
    StoreRefusedError,
    StoreTransientError,
    ValueTooLargeError,
)

LOST = "the connection failed or was lost"

# SQLSTATE: connection exceptions, operator intervention (shutdown, crash, starting up), idle in
# transaction timed out, transaction timed out, serialisation, deadlock, lock not available.
_TRANSIENT_STATES = ("08", "57P", "25P03", "25P04", "40001", "40P01", "55P03")

# With a rollback journal, an open query keeps a commit from its end.
_SQLITE_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "another program holds a lock on the file, maybe by an open query that only reads: "
    "end that program or its query; `dray export` reads without keeping others out",
    sqlite3.SQLITE_LOCKED: "a table is locked by another connection",
    sqlite3.SQLITE_PROTOCOL: "the database's locks are contended",
}
_SQLITE_FATAL = {
    sqlite3.SQLITE_FULL: "the disk is full: free space, then resume the job",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only: give write permission, then resume",
    sqlite3.SQLITE_CANTOPEN: "the file or its journal cannot be opened: check path and permissions",
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database: name another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_IOERR: "the disk reported an error: check it, then resume the job",
    sqlite3.SQLITE_PERM: "access denied: give permission, then resume",
    sqlite3.SQLITE_CONSTRAINT: "a constraint was broken; this is a fault in dray",
}
_POSTGRES_TOO_LARGE = "54000"  # program limit exceeded: a string buffer of 1 GiB
_POSTGRES_FATAL = {
    "53100": "the server's disk is full: free space, then resume the job",
    "23505": "a constraint was broken; this is a fault in dray",
    "42501": "the user lacks a right on the database or its tables: grant it, then resume",
    "42P01": "a table is missing: was the schema dropped? Open the store with its schema in place",
}
_NO_USER = "the server refused the user or password: look at the URL, PGPASSWORD and .pgpass"
_NO_DATABASE = "the database does not exist: create it, or name another in the URL"
_POSTGRES_REFUSED = {"28": _NO_USER, "3D": _NO_DATABASE}
_NO_CONNECTION = "53300"
# What is full, by words of the refusal; the first that fits.
_NO_CONNECTION_LEFT = (
    (r"too many connections for role", "the role has no connection left: raise its CONNECTION LIMIT"),
    (r"too many connections for database", "the database has no connection left: raise its CONNECTION LIMIT"),
    (
        r"no more connections|client connections exceeded",  # PgBouncer's words
        "the pooler takes no more clients: raise its limit of clients (max_client_conn)",
    ),
    (
        r"too many (clients|connections)|remaining connection slots",
        "the server has no connection left: raise its max_connections",
    ),
)
_READ_ONLY = "25006"  # for seconds after a failover, connections still lead to the former primary
_POSTGRES_TRANSIENT = {
    _READ_ONLY: "the server is read-only (a standby, or a failover under way?): use the primary",
    "53200": "the server lacks memory for a statement: give it more, or fewer connections",
    "57014": "the server cancelled a statement: it took too long for dray, or for the statement_timeout "
    "of the role or the database",
}
# libpq gives no SQLSTATE for a connection that the server refuses, but the server's words, in the server's
# language. Those that are not known count as a lost connection. Of several servers, one that may take the
# connection later goes first.
_NOT_UP = (r"the database system is ", "the server is starting, stopping or recovering")
_REFUSED = (
    (  # "SASL" and "no such user" are PgBouncer's words
        r"FATAL:.*(password|SASL) authentication failed|no password supplied"
        r"|FATAL:.*(role .* does not exist|no such user)",
        _NO_USER,
    ),
    (r"FATAL:.*database .* does not exist|FATAL:.*no such database", _NO_DATABASE),
    (
        r"FATAL:.*pg_hba\.conf",
        "the server's pg_hba.conf admits no such connection, by its host, user, database or encryption",
    ),
    (r"FATAL:.*permission denied for database", _POSTGRES_FATAL["42501"]),
)


def translate(error: Exception, name: str) -> StoreError:
    """The dray error for one of SQLAlchemy, sqlite3 or psycopg. ``name`` is what messages call it.

    Raise it after the ``except`` block, not in it: as context, the original would travel along.
    """
    if isinstance(error, PoolTimeoutError):
        return StoreTransientError(f"store {name}: no free connection in this process's pool; try again")
    if isinstance(error, DBAPIError):
        lost, orig = error.connection_invalidated, error.orig
    elif isinstance(error, SQLAlchemyError):
        return StoreFatalError(f"store {name}: {type(error).__name__}; this is a fault in dray")
    else:  # from the driver's own cursor, which bulk reads and writes use
        lost, orig = False, error
    if isinstance(orig, sqlite3.Error):
        return _of_sqlite(orig, name)
    return _of_postgres(orig, name, lost=lost)


def is_of_standby(error: Exception) -> bool:
    """Whether a server refused a write as read-only: new connections may lead to the primary."""
    return getattr(getattr(error, "orig", error), "sqlstate", None) == _READ_ONLY


def _of_sqlite(error: sqlite3.Error, name: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    code_name = getattr(error, "sqlite_errorname", type(error).__name__)
    base = (code or 0) & 0xFF  # the low byte is the class, the rest refines it
    if base in _SQLITE_TRANSIENT:
        return StoreTransientError(f"store {name}: {_SQLITE_TRANSIENT[base]} ({code_name})")
    if base == sqlite3.SQLITE_TOOBIG:
        return ValueTooLargeError(f"store {name}: a value is larger than this SQLite takes ({code_name})")
    return StoreFatalError(f"store {name}: {_SQLITE_FATAL.get(base, 'SQLite failed')} ({code_name})")


def _of_postgres(error: BaseException | None, name: str, *, lost: bool) -> StoreError:
    state = getattr(error, "sqlstate", None)
    kind = type(error).__name__
    if state is None:
        # libpq gives no SQLSTATE for what never reached the server, or was cut off from it.
        if lost or kind in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
            return _of_connecting(str(error), name)
        return StoreFatalError(f"store {name}: {kind}; this is a fault in dray")
    if state == _NO_CONNECTION:
        return _without_connection(_NO_CONNECTION_LEFT[-1][1], name)
    if state in _POSTGRES_TRANSIENT:
        return StoreTransientError(f"store {name}: {_POSTGRES_TRANSIENT[state]} (SQLSTATE {state})")
    if state.startswith(_TRANSIENT_STATES):
        return StoreTransientError(f"store {name}: the server asks to try again (SQLSTATE {state})")
    if state == _POSTGRES_TOO_LARGE:
        return ValueTooLargeError(f"store {name}: a value is larger than PostgreSQL takes (SQLSTATE {state})")
    refused = _POSTGRES_REFUSED.get(state[:2])
    if refused is not None:
        return StoreRefusedError(f"store {name}: {refused} (SQLSTATE {state})")
    hint = _POSTGRES_FATAL.get(state) or "the server refused the statement"
    return StoreFatalError(f"store {name}: {hint} (SQLSTATE {state})")


def _of_connecting(text: str, name: str) -> StoreError:
    """The error for what the server said, in words of dray's own: the server's name its user and host."""
    for pattern, told in _NO_CONNECTION_LEFT:
        if re.search(pattern, text):
            return _without_connection(told, name)
    if re.search(_NOT_UP[0], text):
        return StoreTransientError(f"store {name}: {_NOT_UP[1]}")
    for pattern, told in _REFUSED:
        if re.search(pattern, text):
            return StoreRefusedError(f"store {name}: {told}")
    return StoreTransientError(f"store {name}: {LOST}")


def _without_connection(told: str, name: str) -> NoConnectionError:
    return NoConnectionError(f"store {name}: {told}, or close others")
