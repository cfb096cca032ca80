"""Where a store is: reading the URLs that users write."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dray.errors import ConfigError
from dray.storage.absolute_paths import absolute_path
from dray.storage.addresses import masked_url, whole_login
from dray.storage.default_store import FILE_SUFFIXES

_HINT = "write sqlite:///path/to/file.db, a path ending in .db, a folder, or postgresql://user@host/database"


def plain_name(url: URL) -> str:
    """What messages call a store: a SQLite file's path, or a PostgreSQL database without user and host."""
    if url.get_backend_name() == "sqlite":
        return url.render_as_string(hide_password=True)
    return f"{url.database} (PostgreSQL)" if url.database else "on PostgreSQL"


def parse_url(url: str) -> URL:
    """The SQLAlchemy URL of a store. A folder that is there, such as a run's output, stands for its dray.db.

    Raises:
        ConfigError: not a store's URL, or the driver for it is not installed.
    """
    if "://" not in url:
        if _is_folder(url):
            return _file_url(str(Path(url) / "dray.db"))
        if not url.endswith(FILE_SUFFIXES):
            raise ConfigError(
                f"store {masked_url(url)!r} does not end in {', '.join(FILE_SUFFIXES)}: {_HINT}"
            )
        return _file_url(url)
    try:
        parsed = make_url(whole_login(url))
    except (ArgumentError, ValueError):
        raise ConfigError(f"store URL {masked_url(url)!r} cannot be read: {_HINT}") from None
    if parsed.drivername == "sqlite":
        return _file_url(parsed.database or "")
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return _postgres_url(parsed)
    raise ConfigError(f"store URL {masked_url(url)!r}: no store of kind {parsed.drivername!r}; {_HINT}")


def _is_folder(path: str) -> bool:
    try:
        return bool(path) and Path(path).expanduser().is_dir()
    except (OSError, RuntimeError):  # RuntimeError: a home folder of no user
        return False


def file_url(path: str) -> str:
    """What names a SQLite file among URLs; one with a "?" stays a path, as a URL would end there."""
    return path if "?" in path else f"sqlite:///{path}"


def _file_url(path: str) -> URL:
    if not path or path == ":memory:":
        raise ConfigError(f"a store in memory cannot be shared by the processes of a job: {_HINT}")
    if path.startswith("file:"):
        raise ConfigError(f"SQLite's file: URIs are not offered: {_HINT}")
    return URL.create("sqlite", database=str(absolute_path(path)))


def _postgres_url(parsed: URL) -> URL:
    if find_spec("psycopg") is None:
        raise ConfigError(
            'PostgreSQL needs psycopg 3, which is not installed here: pip install "psycopg[binary]", or '
            "install dray with its extra postgres (README, Install)"
        )
    return parsed.set(drivername="postgresql+psycopg")
