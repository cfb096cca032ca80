"""One SQLAlchemy engine a process for each database, shared by all stores that are open on it.

An engine keeps the statements that SQLAlchemy has compiled. A shard task opens a store for each attempt: with
an engine of its own it would compile all of its statements again, which takes longer than to run them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from dray.store.database.sqlite_file import SqliteUse

_KEPT = 8
"""Engines that no store uses, and that are kept for the next one: without connections."""


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What an engine is made for.

    ``file`` is the SQLite file's device and number: another file of that name, made after the first one was
    deleted, is another database. A file that is not there yet is like no other. ``connections`` are those
    to PostgreSQL that stay open.
    """

    url: URL
    sqlite_use: SqliteUse
    file: tuple[int, int] | None
    connections: int

    @classmethod
    def of(cls, url: URL, sqlite_use: SqliteUse, connections: int) -> EngineKey:
        """The key of a database as it is now."""
        file = None
        if url.get_backend_name() == "sqlite":
            try:
                found = Path(url.database or "").stat()
                file = (found.st_dev, found.st_ino)
            except OSError:
                file = (-1, next(_UNMADE))
        return cls(url, sqlite_use, file, connections)


_UNMADE = count()


@dataclass(slots=True)
class _Shared:
    engine: Engine
    users: int = 0


class SharedEngines:
    """The engines of this process. Safe to use from any thread, and in a process that was forked."""

    def __init__(self, make: Callable[[EngineKey], Engine]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._shared: dict[EngineKey, _Shared] = {}
        os.register_at_fork(after_in_child=self._begin_in_child)

    def take(self, key: EngineKey) -> Engine:
        """The engine for this database, until :meth:`give_back`."""
        with self._lock:
            found = self._shared.pop(key, None) or _Shared(self._make(key))
            self._shared[key] = found  # the last that was used is the last to go
            found.users += 1
            return found.engine

    def give_back(self, key: EngineKey, leave: Callable[[Engine], None]) -> None:
        """One store less uses it. The last one is to ``leave`` it; then its connections are closed."""
        with self._lock:
            found = self._shared[key]
            found.users = max(0, found.users - 1)
            if not found.users:
                leave(found.engine)  # a store that is opened meanwhile waits, and begins a new connection
                found.engine.dispose()
            idle = [other for other, one in self._shared.items() if not one.users]
            for other in idle[:-_KEPT]:
                del self._shared[other]

    def _begin_in_child(self) -> None:
        """The parent's connections stay the parent's: the child opens its own."""
        self._lock = threading.Lock()
        for one in self._shared.values():
            one.engine.dispose(close=False)
            one.users = 0
