"""Rows of columns from a SQL query, one at a time."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dray.errors import ConfigError, InputError, Problem, first_line
from dray.requests.columns.row_builder import columns_of
from dray.requests.media.medium import columns_of_files
from dray.requests.pulse import READ_SECONDS, ReadingPulse
from dray.requests.reading.query_values import keep_values
from dray.requests.reading.tables import BATCH_BYTES, BATCH_ROWS, TableRow, check_columns, is_long
from dray.requests.row_shape import RowShape
from dray.requests.sources import SqlQuery
from dray.requests.validate import too_long
from dray.storage.addresses import identifying_url, masked_url

if TYPE_CHECKING:
    from sqlalchemy import URL, CursorResult

CONNECT_SECONDS = 10
"""For a database to take a connection."""

# A network that swallows packets: after 10 s of silence the kernel asks, and gives up after 30 s.
_LIBPQ = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
_MYSQL = {"connect_timeout": CONNECT_SECONDS, "read_timeout": int(READ_SECONDS)}
_LIMITS: dict[str, dict[str, Any]] = {  # by driver, each in its own words
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "pymysql": _MYSQL,
    "mysqldb": _MYSQL,
    "mysqlconnector": {"connection_timeout": CONNECT_SECONDS},
    "oracledb": {"tcp_connect_timeout": float(CONNECT_SECONDS)},
    "pyodbc": {"timeout": CONNECT_SECONDS},
    "pymssql": {"login_timeout": CONNECT_SECONDS, "timeout": int(READ_SECONDS)},
}

_DIALECTS = {
    "bigquery": "sqlalchemy-bigquery",
    "duckdb": "duckdb-engine",
    "snowflake": "snowflake-sqlalchemy",
}

_FIRST_ROWS = 32  # nothing says beforehand how large a query's rows are

# Classes of SQLSTATE whose texts are about the query or the connection.
_OF_CONNECTIONS = ("08", "57")
_OF_QUERIES = (*_OF_CONNECTIONS, "28", "3D", "42")
# Of drivers without a SQLSTATE: MySQL's numbers for what is missing, misspelled or not allowed.
_MYSQL_DRIVERS = ("pymysql", "MySQLdb")
_MYSQL_OF_QUERIES = (1044, 1045, 1049, 1051, 1052, 1054, 1064, 1142, 1143, 1146, 1305)
_NUMBERING = (*_MYSQL_DRIVERS, "pymssql")  # whose errors begin with the server's number of the error
_ORACLE_CODE = re.compile(r"(ORA|DPY|DPI|TNS)-\d{4,5}\b")
_SQLITE_QUOTES = re.compile("JSON path|fts5|MATCH")  # what its few texts with a value in them hold

_Stage = Literal["connecting", "asking", "fetching"]


def query_name(source: SqlQuery) -> str:
    """The database of a query, without what may be a secret, wherever in the URL that stands."""
    return masked_url(_database_url(source).render_as_string(hide_password=False))


def query_digest(source: SqlQuery) -> str:
    """What a query asks, and of which database, in one hex digest."""
    place = identifying_url(_database_url(source).render_as_string(hide_password=False))
    return hashlib.sha256(f"{place}\n{source.query}".encode()).hexdigest()


def query_rows(source: SqlQuery, line_limit: int, pulse: ReadingPulse | None = None) -> Iterator[TableRow]:
    """The rows of a query, streamed through a server-side cursor where the database has one.

    A server that does not take the connection, and one that goes away, end it by the driver's own limits. How
    long a query may give no row is the reader's to say: one that sorts is as silent as one that hangs.
    """
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    url = _database_url(source)
    name = query_name(source)
    stage: _Stage = "connecting"
    check_database(source)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, connect_args=_limits(url))
        # The query is the user's own: no sign in it (%, :) stands for a parameter.
        with engine.connect().execution_options(stream_results=True, no_parameters=True) as connection:
            stage = "asking"
            driver: Any = connection.connection.driver_connection
            if isinstance(driver, sqlite3.Connection):
                driver.execute("PRAGMA query_only = ON")  # a query of rows changes nothing
            keep_values(driver)
            with (pulse or ReadingPulse()).waiting(getattr(driver, "cancel", lambda: None)):
                result = connection.exec_driver_sql(source.query)
                columns = tuple(result.keys())
                check_columns(source.shape, columns, name)
                stage = "fetching"
                limited = _limited(source.shape, columns)
                for number, row in enumerate(_fetched(result), start=1):
                    long = any(_is_long(row[place], line_limit) for place in limited)
                    yield number, too_long(line_limit) if long else dict(zip(columns, row, strict=True))
    except (SQLAlchemyError, ValueError, ArithmeticError) as error:  # the latter two: drivers about a value
        raise InputError([Problem("query_failed", _query_failed(error, stage), name)]) from None


def check_database(source: SqlQuery) -> None:
    """What can be said of a query's database without asking it.

    Raises:
        ConfigError: a package is missing here.
        InputError: SQLite has no such file. It would make an empty database of a name with a slip in it.
    """
    url = _database_url(source)
    _check_driver(url, query_name(source))
    path = url.database or ""
    if url.get_backend_name() != "sqlite" or not path or path.startswith((":memory:", "file:")):
        return
    if not Path(path).is_file():
        raise InputError(
            [Problem("missing_input", "no such file, so there is no database to ask", query_name(source))]
        )


def _check_driver(url: URL, name: str) -> None:
    from sqlalchemy.exc import NoSuchModuleError

    backend = url.get_backend_name()
    try:
        dialect = url.get_dialect()
    except NoSuchModuleError:
        package = _DIALECTS.get(backend, "the package that brings it")
        raise ConfigError(
            f"{name}: SQLAlchemy knows no {url.drivername} here; install {package}, or correct the URL"
        ) from None
    if dialect.is_async:
        raise ConfigError(f"{name}: {url.drivername} is for asyncio; name another driver, or {backend}://")
    try:
        dialect.import_dbapi()
    except ImportError as error:
        hint = 'pip install "psycopg[binary]"' if backend == "postgresql" else "install its driver"
        raise ConfigError(f"{name}: {error.name or 'the driver'} is not installed; {hint}") from error


def _fetched(result: CursorResult[Any]) -> Iterator[Sequence[Any]]:
    """The rows of a result, fetched few at first, and more at a time while they are small."""
    rows = _FIRST_ROWS
    while batch := deque(result.fetchmany(rows)):
        size = sum(_size(value) for row in batch for value in row)
        rows = max(1, min(BATCH_ROWS, 2 * rows, BATCH_BYTES * len(batch) // max(1, size)))
        while batch:  # else it is in memory while the next one comes
            yield batch.popleft()


def _limited(shape: RowShape, columns: Sequence[str]) -> list[int]:
    """The places of columns that are read and have the limit of lines; files have their own."""
    limited = columns_of(shape).keys() - set(columns_of_files(shape).values())
    return [place for place, name in enumerate(columns) if name in limited]


def _is_long(value: object, limit: int) -> bool:
    if isinstance(value, str):
        return is_long(value, limit)
    return isinstance(value, list | dict) and _size(value) > limit


def _size(value: object) -> int:
    """About the bytes of a value. A loop, as JSON may nest deeper than Python recurses."""
    size, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str | bytes | bytearray | memoryview):
            size += len(part)
        elif isinstance(part, dict):
            waiting.extend(part)
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
        else:
            size += 8
    return size


def _limits(url: URL) -> dict[str, Any]:
    """What the database's driver calls its limits, where the URL does not set them itself."""
    known = _LIMITS.get(url.get_driver_name(), {})
    return {name: value for name, value in known.items() if name not in url.query}


def _query_failed(error: Exception, stage: _Stage) -> str:
    """What the driver says, where that is about the query or the connection, and not about a row's values."""
    cause: Any = getattr(error, "orig", None) or error
    state = _sqlstate(cause)
    told = "the rows of the query cannot be read" if stage == "fetching" else "the query cannot be read"
    told_by_state = state.startswith(_OF_CONNECTIONS if stage == "fetching" else _OF_QUERIES)
    if told_by_state or (not state and _quotes_no_row(cause, stage)):
        # The first line alone: drivers go on with the statement and its values.
        return f"{told}: {first_line(cause, 200, type(cause).__name__)}"
    code = f"SQLSTATE {state}" if state else _own_code(cause)
    known = f" ({code})" if code else ""
    return (
        f"{told}: {type(cause).__name__}{known}; what the driver says may quote a row, so dray does not "
        "show it: run the query in the database's own client"
    )


def _quotes_no_row(cause: Any, stage: _Stage) -> bool:
    """Whether an error without a SQLSTATE is known to quote no value of a row. Many drivers' errors do."""
    if stage != "asking":
        return stage == "connecting"
    driver = type(cause).__module__.partition(".")[0]
    if driver == "sqlite3":
        return _SQLITE_QUOTES.search(str(cause)) is None
    if driver in _MYSQL_DRIVERS:
        return next(iter(cause.args), None) in _MYSQL_OF_QUERIES
    # libpq has no SQLSTATE for a connection that is lost, SQLAlchemy none for a query that gives no rows.
    lost = driver in ("psycopg", "psycopg2") and type(cause).__name__ == "OperationalError"
    return lost or driver == "sqlalchemy"


def _own_code(cause: Any) -> str:
    """The code of a driver without a SQLSTATE: a number, or a name, which quotes nothing. Empty for none."""
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorname", "")
    first = next(iter(cause.args), None)
    if isinstance(first, int) and type(cause).__module__.partition(".")[0] in _NUMBERING:
        return f"error {first}"
    named = _ORACLE_CODE.match(str(cause))
    return named[0] if named else ""


def _sqlstate(cause: Any) -> str:
    """The SQLSTATE that psycopg, MySQL's own driver, psycopg2 or pyodbc name; empty where they do not."""
    found = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    first = next(iter(cause.args), None)
    found = found or (first if isinstance(first, str) and re.fullmatch(r"[0-9A-Z]{5}", first) else None)
    return str(found or "")


def _database_url(source: SqlQuery) -> URL:
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    try:
        url = sqlalchemy.make_url(source.url)
    except (SQLAlchemyError, ValueError):  # the latter quotes a piece of the URL, which may be a password's
        raise ConfigError(
            "the input of a query is no database URL, such as sqlite:///data.db or postgresql://host/db; "
            "in a password, write '@' as %40, ':' as %3A and '/' as %2F"
        ) from None
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url
