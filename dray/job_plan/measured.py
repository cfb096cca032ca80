"""What finished runs measured, from the store that keeps it."""

from __future__ import annotations

import os

from dray.job.options.request import BLOCK
from dray.job.options.resolving import Blocks
from dray.store import Efficiency
from dray.store.named import open_existing


def efficiencies_in(store: str | None, blocks: Blocks) -> list[Efficiency]:
    """What the runs in a store measured, the latest first; that of ``$DRAY_STORE`` where none is named.

    Raises:
        ConfigError: there is no store of that name.
        StoreError: it does not answer.
    """
    given = store or os.environ.get("DRAY_STORE")
    if not given:
        return []
    named = blocks.store_url(given.removeprefix(BLOCK)) if given.startswith(BLOCK) else given
    with open_existing(named) as opened:
        return opened.efficiencies()
