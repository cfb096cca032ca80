"""Values of databases that Python's own types cannot hold, or hold as another value.

PostgreSQL has ``infinity``, years before 1 and the time 24:00, of which psycopg makes an error that ends the
query. Of one month it makes 30 days. Such values come as the texts that the database itself writes.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg.abc import Loader

_DATED = ("date", "time", "timetz", "timestamp", "timestamptz")


def keep_values(driver: Any) -> None:
    """Have a driver's connection give every value, before a query is asked.

    As in CSV, bytes that are not UTF-8 become lone surrogates, and are found where a prompt is built.
    """
    if isinstance(driver, sqlite3.Connection):
        driver.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    elif type(driver).__module__.partition(".")[0] == "psycopg":
        _keep_times(driver)


def _keep_times(connection: Any) -> None:
    from psycopg.types.string import TextLoader

    adapters = connection.adapters
    adapters.register_loader("interval", TextLoader)
    for name in _DATED:
        usual = adapters.get_loader(adapters.types[name].oid, TextLoader.format)
        adapters.register_loader(name, _or_text(usual))


def _or_text(usual: type[Loader]) -> type[Loader]:
    """A loader as the ``usual`` one, which gives the database's text where that one has no value."""
    from psycopg import DataError
    from psycopg.adapt import Loader as Base

    class OrText(Base):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._usual = usual(oid, context)

        def load(self, data: Any) -> Any:
            try:
                return self._usual.load(data)
            except DataError:
                return bytes(data).decode()

    return OrText
