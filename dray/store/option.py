"""A store as the commands name it that messages advise: as written, they find the job."""

from __future__ import annotations

import shlex
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dray.errors import ConfigError
from dray.store.database.urls import parse_url


def store_option(store: str | URL) -> str:
    """`` --store FOLDER``, or `` --store URL`` for a database: messages travel, and name no user or host."""
    url = store if isinstance(store, URL) else _url(store)
    if url is None or url.get_backend_name() != "sqlite" or not url.database:
        return " --store URL"
    file = Path(url.database)
    return f" --store {shlex.quote(str(file.parent if file.name == 'dray.db' else file))}"


def _url(store: str) -> URL | None:
    try:
        return make_url(store) if "://" in store and not store.startswith("sqlite") else parse_url(store)
    except (ArgumentError, ValueError, ConfigError):
        return None
