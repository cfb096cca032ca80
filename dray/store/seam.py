"""The one place where errors of SQLAlchemy and its drivers become dray's.

Which code means what follows the rows STORE_TRANSIENT and STORE_FATAL of the table of causes:
lost connections, server restarts, serialisation, deadlocks and locks are worth another try; a
full disk, a missing table or right, and a read-only database need somebody to act.

Messages carry the driver's code and the masked URL. They never carry SQL parameters, which
hold answers, nor the driver's own detail lines, which may quote them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dray.errors import StoreError, StoreFatalError, StoreTransientError

# SQLSTATE: connection exceptions, operator intervention (shutdown, crash, starting up, idle in
# transaction timed out), serialisation, deadlock, lock not available, too many connections.
_TRANSIENT_STATES = ("08", "57P", "25P03", "40001", "40P01", "55P03", "53300")

_SQLITE_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "the database is locked by another process",
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
_POSTGRES_FATAL = {
    "53100": "the server's disk is full: free space, then resume the job",
    "25006": "the server is read-only (a standby?): use the primary",
    "23505": "a constraint was broken; this is a fault in dray",
    "42501": "the user lacks a right on the database or its tables: grant it, then resume",
    "42P01": "a table is missing: was the schema dropped? Open the store with its schema in place",
    "28": "the server refused the user or password",
    "3D": "the database does not exist: create it",
}


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Runs a block, turning what SQLAlchemy raises into dray's errors. ``url`` must be masked."""
    try:
        yield
    except SQLAlchemyError as error:
        raise translate(error, url) from _quiet(error)
    except sqlite3.Error as error:  # raised by the driver itself, on paths that go around SQLAlchemy
        raise _of_sqlite(error, url) from _quiet(error)


def translate(error: SQLAlchemyError, url: str) -> StoreError:
    """The dray error for ``error``. ``url`` must be masked."""
    if isinstance(error, PoolTimeoutError):
        return StoreTransientError(f"store {url}: no free connection in this process's pool; try again")
    if not isinstance(error, DBAPIError):
        return StoreFatalError(f"store {url}: {type(error).__name__}, a fault in the use of the database")
    if isinstance(error.orig, sqlite3.Error):
        return _of_sqlite(error.orig, url)
    return _of_postgres(error, url)


def _of_sqlite(error: sqlite3.Error, url: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    base = (code or 0) & 0xFF  # the low byte is the class, the rest refines it
    if base in _SQLITE_TRANSIENT:
        return StoreTransientError(f"store {url}: {_SQLITE_TRANSIENT[base]} ({name})")
    return StoreFatalError(f"store {url}: {_SQLITE_FATAL.get(base, 'SQLite failed')} ({name})")


def _of_postgres(error: DBAPIError, url: str) -> StoreError:
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        # libpq gives no SQLSTATE for what never reached the server, or was cut off from it.
        if error.connection_invalidated or isinstance(error, OperationalError | InterfaceError):
            return StoreTransientError(f"store {url}: the connection failed or was lost")
        return StoreFatalError(f"store {url}: {type(error.orig).__name__}")
    if state.startswith(_TRANSIENT_STATES):
        return StoreTransientError(f"store {url}: the server asks to try again (SQLSTATE {state})")
    hint = _POSTGRES_FATAL.get(state) or _POSTGRES_FATAL.get(state[:2]) or "the server refused the statement"
    return StoreFatalError(f"store {url}: {hint} (SQLSTATE {state})")


def _quiet(error: BaseException) -> BaseException:
    """A stand-in for ``error`` as a cause, without the parameters that its text may quote."""
    orig = getattr(error, "orig", error)
    return RuntimeError(f"{type(orig).__module__}.{type(orig).__name__}")
