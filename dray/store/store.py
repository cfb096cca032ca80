"""The store's public face, and how it is opened."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from sqlalchemy import select

from dray.errors import NoStoreError, StoreError, StoreTransientError, StoreUnreachableError
from dray.store.calls.account import AccountCalls
from dray.store.calls.jobs import JobCalls
from dray.store.calls.records import RecordCalls
from dray.store.calls.results import ResultCalls
from dray.store.calls.shards import ShardCalls
from dray.store.database.clock import Clock, DatabaseClock
from dray.store.database.connection import CONNECTIONS, Database
from dray.store.database.seam import LOST
from dray.store.database.sqlite_file import PLAIN_USE, SqliteUse
from dray.store.database.urls import parse_url
from dray.store.migrate import ensure_schema

PATIENCE = 20.0
"""Seconds for which a transaction is tried again after transient errors."""


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    create: bool = True,
    upgrade: bool = False,
    patience: float = PATIENCE,
    connections: int = CONNECTIONS,
) -> Store:
    """Open a store, creating or upgrading its tables unless ``create`` is false.

    Without ``create``, what an older dray has made is used as it is where that is possible.

    Args:
        url: ``sqlite:///path``, a path ending in ``.db``, ``.sqlite`` or ``.sqlite3``, or
            ``postgresql://...``. Workers open a store by its URL themselves.
        clock: where leases take the time from; the database's own clock when None.
        create: whether to create what is missing, and to upgrade what is older.
        upgrade: whether to upgrade without ``create`` what is too old to be used, as one who writes does.
        patience: seconds for which later transactions are tried again after transient errors.
        connections: how many of PostgreSQL's to keep between transactions. One more transaction at a time
            opens one more for itself.

    Raises:
        ConfigError: not a store's URL, its driver is not installed, or a SQLite file that is to be made on
            a network's file system, or in a folder that Ray deletes. With ``create`` false it is opened to
            be read.
        StoreUnreachableError: no connection could be made.
        NoStoreError: nothing there, and ``create`` is false.
        NoConnectionError: the server has no connection left; this is a StoreUnreachableError.
        StoreRefusedError: the server refuses the user, the password or the database.
        StoreFatalError: the schema is newer than this code, or older and not to be upgraded, or the database
            is unusable.
    """
    parsed = parse_url(url)
    use = PLAIN_USE
    if parsed.get_backend_name() == "sqlite":
        use = SqliteUse.of(Path(parsed.database or ""), create=create)
        _prepare_file(Path(parsed.database or ""), create=create)
    database = Database(
        parsed,
        clock=clock or DatabaseClock(),
        patience=patience,
        sqlite_use=use,
        connections=connections,
    )
    try:
        ensure_schema(database, create=create, upgrade=upgrade)
    except StoreError as error:
        database.close()
        if not isinstance(error, StoreTransientError) or isinstance(error, StoreUnreachableError):
            raise
        hint = "; is the server up, and the URL right?" if LOST in str(error) else ""
        unreachable = StoreUnreachableError(f"{error}{hint}")
        unreachable.address = error.address
        raise unreachable from error
    return Store(database)


def _prepare_file(path: Path, *, create: bool) -> None:
    if path.exists():
        return
    if not create:
        raise NoStoreError(f"store {path}: no such file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnreachableError(f"store {path}: its folder cannot be made: {error.strerror}") from error


class Store(JobCalls, ShardCalls, RecordCalls, ResultCalls, AccountCalls):
    """Jobs, shards and results in one database. Safe to share between threads.

    Every method may raise StoreTransientError (after ``patience`` seconds of trying) and
    StoreFatalError. Methods given a lease raise FencedError once another holder has it.
    """

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def url(self) -> str:
        """Where the store is, with the password masked: for messages only."""
        return self._database.url

    def close(self) -> None:
        """Close the connections. Leases stay as they are."""
        self._database.close()

    def now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        return float(self._read(lambda tx: tx.execute(select(tx.now)).scalar_one()))
