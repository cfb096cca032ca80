"""How one SQLite file is opened and left: its journal, and who may change it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from dray.storage.file_system import file_system_of, refuse_network, refuse_unpacked

BUSY_SECONDS = 30.0
"""How long one SQLite statement waits for another process's lock."""

_WAL_SAFE = (3, 51, 3)  # older libraries can corrupt a write-ahead log shared by several connections


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteUse:
    """What may be done to a file. ``wal``: a write-ahead log is safe there."""

    read_only: bool = False
    wal: bool = False

    @classmethod
    def of(cls, path: Path, *, create: bool) -> SqliteUse:
        """How to use a file: one on a network's file system is read at most, never written or recovered.

        ``create`` is true for the process that makes the store and decides on its journal.

        Raises:
            ConfigError: it is to be made there, or in a folder that Ray deletes.
        """
        found = file_system_of(path)
        if create:
            refuse_unpacked(path)
            refuse_network(path, found)
        safe = found.local and sqlite3.sqlite_version_info >= _WAL_SAFE
        return cls(read_only=found.network, wal=create and safe)


PLAIN_USE = SqliteUse()
"""To read and write, with the journal that the file has."""


def sqlite_engine(url: URL, use: SqliteUse) -> Engine:
    """An engine on the file."""
    if use.read_only:
        query = {"mode": "ro", "uri": "true"}
        url = URL.create("sqlite", database=f"file:{quote(url.database or '')}", query=query)
    arguments = {"timeout": BUSY_SECONDS}
    # Threads of this process share the engine: each must get a connection.
    engine = create_engine(url, connect_args=arguments, hide_parameters=True, max_overflow=-1)
    event.listen(engine, "connect", _preparation(use))
    event.listen(engine, "begin", _begin)
    return engine


def leave(engine: Engine) -> None:
    """Remove the rollback journal, where no other process uses it. What mode the file is in stays."""
    with suppress(sqlite3.Error, SQLAlchemyError), closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode = DELETE")


def _preparation(use: SqliteUse) -> Callable[[sqlite3.Connection, Any], None]:
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the begin event below decides how transactions start
        run = connection.execute
        run("PRAGMA cache_size = -65536")
        if use.read_only:
            return
        run("PRAGMA page_size = 8192")  # matters to new files only; 7 answers of 1 KB a page, not 3
        run("PRAGMA synchronous = FULL")
        # The file says whether it has a write-ahead log: a process that did not make it keeps to that.
        if use.wal:
            run("PRAGMA journal_mode = WAL")
        elif run("PRAGMA journal_mode").fetchone()[0] != "wal":
            # The rollback journal, kept in place between commits. Its header is synced when a commit
            # ends; deleting it instead would leave the last commit open to a power cut (that mode
            # syncs no folder under FULL), and truncating it costs the file system more per sync.
            run("PRAGMA journal_mode = PERSIST")

    return prepare


def _begin(connection: Connection) -> None:
    # Python's driver starts deferred transactions, in which two readers can both decide to claim.
    connection.exec_driver_sql(connection.get_execution_options()["dray_begin"])
