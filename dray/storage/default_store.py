"""The store of commands that name none: that of ``$DRAY_STORE``."""

from __future__ import annotations

import os

STORE_VARIABLE = "DRAY_STORE"
FILE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
"""How the path of a store's file ends; a folder's stands for the ``dray.db`` in it."""


def default_store() -> str | None:
    """What the variable holds: whatever ``--store`` takes. None where it is not set, or empty."""
    return os.environ.get(STORE_VARIABLE) or None
