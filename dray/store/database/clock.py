"""The clock that leases go by: the database's own, so that no two machines' clocks are compared."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Gives the time as SQL, so that the statement that uses it reads it in the database."""

    def now(self, dialect: str) -> str:
        """An SQL expression: seconds since 1970 as a double. ``dialect`` is SQLAlchemy's name."""
        ...


# julianday works on every SQLite; unixepoch('subsec') came with 3.42. 2440587.5 is 1970-01-01.
_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch FROM clock_timestamp())::double precision",
}


class DatabaseClock:
    """The database's wall clock, at least to the millisecond."""

    def now(self, dialect: str) -> str:
        """See :class:`Clock`."""
        return _NOW[dialect]
