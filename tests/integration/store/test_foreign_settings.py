"""PostgreSQL databases that others have set up, and what lies between: poolers, defaults, encodings."""

from __future__ import annotations

import pytest

from dray.store import open_store

pytestmark = pytest.mark.integration


def test_nothing_is_prepared_on_a_connection_that_a_pooler_may_give_to_another(postgres_url: str) -> None:
    """PgBouncer in transaction mode: psycopg's statement of the fifth use was on another server's side."""
    with open_store(postgres_url, connections=1) as store:
        for _ in range(8):
            store.find_job("job")
        prepared = store._database.read(
            lambda tx: tx.connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar()
        )
    assert prepared == 0
