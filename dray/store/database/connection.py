"""Engines and transactions: how each database is opened, locked and retried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Double, Engine, Executable, Table, create_engine, event, literal_column
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, CursorResult
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from dray.errors import ConfigError, StoreTransientError
from dray.storage.addresses import masked_url
from dray.store.database.clock import Clock
from dray.store.database.engines import EngineKey, SharedEngines
from dray.store.database.seam import is_of_standby, translate
from dray.store.database.sqlite_file import PLAIN_USE, SqliteUse, leave, sqlite_engine
from dray.store.database.turn import Turn
from dray.store.database.urls import plain_name

T = TypeVar("T")

LOCK_SECONDS = 15.0
"""How long one PostgreSQL statement waits for another transaction's lock.

A reader that gives up by itself leaves its server process behind, which waits on and counts as a connection.
"""
STATEMENT_SECONDS = 30.0
"""How long PostgreSQL works on one statement of a write, or waits for the next one, with locks held.

A writer that is frozen or cut off in the middle of a commit would keep every other process from its
shard, whatever its lease says.
"""
SILENCE_SECONDS = 40.0
"""How long PostgreSQL may say nothing before its connection counts as lost: longer than it waits itself."""
LONG_SILENCE_SECONDS = 3600.0
"""The same for what reads or changes whole tables."""

CONNECTIONS = 4
"""Connections to PostgreSQL that a process keeps; its threads open more of them for a moment."""

_READ = {"dray_begin": "BEGIN", "dray_hurried": False}
_WRITE = {"dray_begin": "BEGIN IMMEDIATE", "dray_hurried": True}
_LONG = {"dray_long": True, "dray_hurried": False}
# For a network that swallows packets: with these settings the kernel ends the wait with an error.
_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
# psycopg prepares a statement at its fifth use; a pooler such as PgBouncer gives the next transaction another
# session of the server, which does not know it.
_NOT_PREPARED = {"prepare_threshold": None}
_ENCODED = {"client_encoding": "utf8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tx:
    """One open transaction: what the store's functions run their statements on."""

    connection: Connection
    now: ColumnElement[float]
    """The time by the store's clock, to be used inside statements."""

    @property
    def dialect(self) -> str:
        """SQLAlchemy's name of the database: ``sqlite`` or ``postgresql``."""
        return self.connection.dialect.name

    def execute(self, statement: Executable, *parameters: Any) -> CursorResult[Any]:
        """Run one statement."""
        return self.connection.execute(statement, *parameters)


def insert_into(tx: Tx, table: Table) -> Any:
    """An INSERT into ``table`` that can say what becomes of rows whose key is already there."""
    insert = postgresql.insert if tx.dialect == "postgresql" else sqlite.insert
    return insert(table)


def insert_ignoring(tx: Tx, table: Table) -> Any:
    """An INSERT into ``table`` that leaves rows alone whose key is already there."""
    return insert_into(tx, table).on_conflict_do_nothing()


def walk_the_key(tx: Tx) -> None:
    """Have this transaction read pages of a table in the order of its primary key, without a sort.

    A table that was filled a moment ago has no statistics yet, and then PostgreSQL's planner would sort all
    rows that are left, page after page, rather than walk the key.
    """
    if tx.dialect == "postgresql":
        tx.connection.exec_driver_sql("SET LOCAL enable_sort = off")


class Database:
    """One database: an engine, a clock, and transactions that translate and retry errors."""

    def __init__(
        self,
        url: URL,
        *,
        clock: Clock,
        patience: float,
        sqlite_use: SqliteUse = PLAIN_USE,
        connections: int = CONNECTIONS,
    ) -> None:
        self.url = masked_url(url.render_as_string(hide_password=False))
        self.name = plain_name(url)
        self.clock = clock
        self.patience = patience
        self._key = EngineKey.of(url, sqlite_use, connections)
        self.engine = _ENGINES.take(self._key)
        self._driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        self._readers = self.engine.execution_options(**_READ)
        self._writers = self.engine.execution_options(**_WRITE)
        ours = url.get_backend_name() == "sqlite" and not sqlite_use.read_only
        file = Path(url.database or "") if ours else None
        self._turn = Turn(file) if file else None
        self._closed = False

    def read(self, work: Callable[[Tx], T], *, snapshot: bool = False, long: bool | None = None) -> T:
        """Run ``work`` in a read transaction, again after transient errors.

        ``snapshot`` makes all statements see one state of the database (on SQLite they always do).
        ``long`` lets them take as long as they do; None does so for a snapshot.
        """
        engine = self._readers
        if snapshot and engine.dialect.name == "postgresql":
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        if snapshot if long is None else long:
            engine = engine.execution_options(**_LONG)
        return self._patiently(engine, work, None)

    def write(self, work: Callable[[Tx], T], *, long: bool = False) -> T:
        """Run ``work`` in a write transaction, again after transient errors.

        Again means from the start, so ``work`` must be idempotent or fenced: a commit whose
        acknowledgement was lost is repeated. ``long`` lets its statements take as long as they do.
        """
        engine = self._writers.execution_options(**_LONG) if long else self._writers
        return self._patiently(engine, work, self._turn)

    def close(self) -> None:
        """Close the connections, unless this process has the database open elsewhere too.

        On SQLite it removes the files beside the database. The journal stays while another process uses it,
        and all of a file that is only read.
        """
        if self._closed:
            return
        self._closed = True
        _ENGINES.give_back(self._key, self._leave)

    def _leave(self, engine: Engine) -> None:
        if self._turn is not None:
            self._turn.remove()
            leave(engine)

    def _patiently(self, engine: Engine, work: Callable[[Tx], T], turn: Turn | None) -> T:
        deadline = time.monotonic() + self.patience
        pause = 0.05
        while True:
            try:
                with turn.take() if turn else nullcontext():
                    return self._once(engine, work)
            except StoreTransientError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, not a secret
            pause = min(pause * 2, 2.0)

    def _once(self, engine: Engine, work: Callable[[Tx], T]) -> T:
        try:
            with engine.begin() as connection:
                now = literal_column(self.clock.now(connection.dialect.name), Double)
                return work(Tx(connection=connection, now=now))
        except (SQLAlchemyError, self._driver_error) as error:
            failure = translate(error, self.name)
            if is_of_standby(error):  # the connection works, so the pool would keep it
                self.engine.dispose()
        failure.address = self.url
        raise failure


def _engine(key: EngineKey) -> Engine:
    url = key.url
    if url.get_backend_name() == "sqlite":
        return sqlite_engine(url, key.sqlite_use)
    defaults = {"application_name": "dray", **_NETWORK, **_NOT_PREPARED, **_ENCODED}
    engine = create_engine(
        url,
        hide_parameters=True,
        isolation_level="READ COMMITTED",  # claims and fences rely on it, whatever the database's default is
        pool_size=key.connections,
        max_overflow=-1,  # each thread must get one: those beyond the size are closed after use
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
    )
    event.listen(engine, "do_connect", _connect_postgres)
    event.listen(engine, "begin", _begin_postgres)
    return engine


_ENGINES = SharedEngines(_engine)


def _connect_postgres(_dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
    connection = _watched_connection().connect(*arguments, **options)
    encoding, name = connection.info.parameter_status("server_encoding"), connection.info.dbname
    if encoding != "UTF8":
        connection.close()
        raise ConfigError(
            f"store {name} (PostgreSQL): its encoding is {encoding}, which cannot keep every answer; "
            "name a database that is made with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    return connection


def _begin_postgres(connection: Connection) -> None:
    options = connection.get_execution_options()
    driver: Any = connection.connection.driver_connection
    driver.silence = LONG_SILENCE_SECONDS if options.get("dray_long") else SILENCE_SECONDS
    if options.get("dray_begin") == _WRITE["dray_begin"]:
        # An acknowledged row is on disk, whatever the server's default says.
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
    # For this transaction alone, so that a pooler between us and the server does no harm.
    if options.get("dray_hurried"):
        connection.exec_driver_sql(
            _limits(lock=LOCK_SECONDS, statement=STATEMENT_SECONDS, idle=STATEMENT_SECONDS)
        )
    elif options.get("dray_long"):  # whatever limits the role or the database has by default
        connection.exec_driver_sql(_limits(lock=LONG_SILENCE_SECONDS, statement=LONG_SILENCE_SECONDS, idle=0))
    else:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(LOCK_SECONDS * 1000)}")


def _limits(*, lock: float, statement: float, idle: float) -> str:
    """Statements that bound the waits of a transaction, in seconds; 0 for no bound."""
    return (
        f"SET LOCAL lock_timeout = {int(lock * 1000)}; "
        f"SET LOCAL statement_timeout = {int(statement * 1000)}; "
        f"SET LOCAL idle_in_transaction_session_timeout = {int(idle * 1000)}"
    )


@cache
def _watched_connection() -> Any:
    """psycopg's connection, which waits for ever on a server that is hung, with an end to its waits."""
    import psycopg

    class WatchedConnection(psycopg.Connection[Any]):
        silence = SILENCE_SECONDS

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return super().wait(_until_silent(gen, self.silence), *arguments, **options)
            except _SilentError:
                self.close()
            raise psycopg.OperationalError("the server has said nothing for too long")

    return WatchedConnection


class _SilentError(Exception):
    pass


def _until_silent(steps: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """psycopg's steps of an exchange with the server. It resumes them every 0.1 s, also without data."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready:
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise _SilentError
            wanted = steps.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
