"""What finished runs measured, from the store that keeps it."""

from __future__ import annotations

from collections.abc import Callable

from dray.errors import NoStoreError
from dray.job.options.request import BLOCK
from dray.job.options.resolving import Blocks
from dray.storage.default_store import STORE_VARIABLE, default_store
from dray.store import Efficiency
from dray.store.named import open_existing


def efficiencies_in(store: str | None, blocks: Blocks, say: Callable[[str], None]) -> list[Efficiency]:
    """What the runs in a store measured, the latest first; that of ``$DRAY_STORE`` where none is named.

    The variable's may not be there yet, as before the first run into it: ``say`` hears so.

    Raises:
        ConfigError: there is no store of the name in ``store``, or the variable's cannot be one.
        StoreError: it does not answer.
    """
    given = store or default_store()
    if not given:
        return []
    named = blocks.store_url(given.removeprefix(BLOCK)) if given.startswith(BLOCK) else given
    try:
        with open_existing(named) as opened:
            return opened.efficiencies()
    except NoStoreError:
        if store:
            raise
        say(f"the store of ${STORE_VARIABLE} is not there yet: this plan goes without measured runs")
        return []
