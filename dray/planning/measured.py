"""What finished runs measured, from the store that keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from dray.errors import ConfigError
from dray.job.options.request import BLOCK
from dray.job.options.resolving import Blocks
from dray.storage.addresses import without_variable
from dray.store import Efficiency, open_store

_FILE = "dray.db"


def efficiencies_in(store: str | None, blocks: Blocks) -> list[Efficiency]:
    """What the runs in a store measured, the latest first; that of ``$DRAY_STORE`` where none is named.

    Raises:
        ConfigError: there is no store of that name.
        StoreError: it does not answer.
    """
    given = store or os.environ.get("DRAY_STORE")
    if not given:
        return []
    with open_store(_url(given, blocks), create=False) as opened:
        return opened.efficiencies()


def _url(given: str, blocks: Blocks) -> str:
    if given.startswith(BLOCK):
        return blocks.store_url(given.removeprefix(BLOCK))
    given = without_variable(given)
    if "://" in given:
        return given
    file = Path(given) / _FILE if Path(given).is_dir() else Path(given)
    if not file.is_file():
        raise ConfigError(f"store {given}: no {_FILE} there; name a run's output folder, a file, or a URL")
    return f"sqlite:///{file.absolute()}"
