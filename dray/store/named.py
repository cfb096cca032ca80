"""A store that is there, as people name it."""

from __future__ import annotations

from pathlib import Path

from dray.errors import ConfigError, NoStoreError
from dray.storage.absolute_paths import absolute_path
from dray.storage.addresses import masked_url, without_variable
from dray.store.store import PATIENCE, Store, open_store

NAMES = "name the output folder of a run, a file that ends in .db, or a URL"
"""What a store may be named by."""


def open_existing(reference: str, *, patience: float = PATIENCE, upgrade: bool = False) -> Store:
    """Open the store that ``reference`` names: a URL, ``env:NAME``, a file, or the output folder of a run.

    Nothing is created. ``patience`` is in seconds, for which transactions are tried again; ``upgrade`` brings
    the tables of an older dray up to date, without which they may be unreadable.

    Raises:
        NoStoreError: there is no store of that name.
        ConfigError: there can be none.
        StoreUnreachableError: no connection could be made.
        StoreFatalError: its tables are newer than this dray, or older and not to be upgraded.
    """
    given = without_variable(reference)
    if "://" not in given:
        given = str(file_of(given))
    return open_store(given, create=False, upgrade=upgrade, patience=patience)


def file_of(given: str) -> Path:
    """The absolute path of the store's file, which is named by itself or by the folder that holds it.

    Raises:
        NoStoreError: it is not there.
        ConfigError: this user may not look.
    """
    try:
        path = Path(given).expanduser()
        if path.is_dir():
            if not (path / "dray.db").is_file():
                raise NoStoreError(f"no dray.db in {masked_url(given)}; {NAMES}")
            return absolute_path(path / "dray.db")
        if not path.exists():
            raise NoStoreError(f"no store at {masked_url(given)}: no such file or folder; {NAMES}")
        return absolute_path(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a home folder of no user
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"no store at {masked_url(given)}: {reason}; {NAMES}") from None
