"""Which rows of a job have an outcome: look-ups by primary key. Functions on one open transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dray.store.database.connection import Tx


def present(tx: Tx, job_key: int, indexes: Sequence[int]) -> list[int]:
    """Which of ``indexes`` have an outcome, in any order."""
    if tx.dialect == "postgresql":
        found = tx.connection.exec_driver_sql(
            "SELECT idx FROM results WHERE job_key = %s AND idx = ANY(%s)", (job_key, list(indexes))
        )
    else:
        found = tx.connection.exec_driver_sql(
            "SELECT idx FROM results WHERE job_key = ? AND idx IN (SELECT value FROM json_each(?))",
            (job_key, json.dumps(list(indexes))),
        )
    return [row[0] for row in found]
