"""Calls that walk over all rows of a job take the same for each batch, wherever the job's other rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from dray.requests.model import REUSED
from dray.store import Store, deletion, open_store, reading
from dray.store.database.connection import Tx
from tests.support.stores import FINGERPRINT

pytestmark = pytest.mark.integration

ROWS = 20_000
BATCH = 500

_RESULTS = """INSERT INTO results (job_key, idx, shard, epoch, committed_at, prompt_tokens, cached_tokens,
    completion_tokens, queue_seconds, first_token_seconds, total_seconds, custom_id, response)
    SELECT :key, n, CASE WHEN n >= :reused THEN :place ELSE 0 END, 1, 0, 1, 0, 1, 0, 0, 0, 'id-' || n, '{}'
    FROM generate_series(0, :last) AS n"""
_FOLLOWERS = """INSERT INTO followers (job_key, idx, leader, custom_id)
    SELECT :key, n, 0, 'id-' || n FROM generate_series(0, :last) AS n"""
_PAGES = """SELECT sum(idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables
    WHERE relname IN ('results', 'followers')"""


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    """With rows of one job, and no vacuum that would help."""
    with open_store(postgres_url) as opened:
        opened.create_job("job", fingerprint=FINGERPRINT, settings={})
        key = opened.get_job("job").key

        def fill(tx: Tx) -> None:
            for table in ("results", "followers"):
                tx.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
            given = {"key": key, "last": ROWS - 1}
            tx.execute(text(_RESULTS), {**given, "reused": ROWS - 2, "place": REUSED})
            tx.execute(text(_FOLLOWERS), given)

        opened._write(fill)
        yield opened


@pytest.fixture
def pages_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[int]]:
    """Count the pages of indexes that each call of ``_write`` or ``_read`` reads."""

    def watch(name: str) -> list[int]:
        real, counts = getattr(store, name), []

        def counted(*given: Any, **more: Any) -> Any:
            before = _index_pages(store)
            found = real(*given, **more)
            counts.append(_index_pages(store) - before)
            return found

        monkeypatch.setattr(store, name, counted)
        return counts

    return watch


def _index_pages(store: Store) -> int:
    """All that this process has read so far; it uses one connection."""
    with store._database.engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.commit()
        return int(connection.execute(text(_PAGES)).scalar_one())


def test_the_last_rows_of_a_job_are_deleted_as_fast_as_the_first(
    store: Store, pages_read: Callable[[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of deleted rows stay in PostgreSQL's index until a vacuum."""
    monkeypatch.setattr(deletion, "BATCH_ROWS", BATCH)
    buried = store.bury_job("job")
    counts = pages_read("_write")
    assert store.remove_job(buried) == ROWS
    batches = ROWS // BATCH
    assert len(counts) == 2 * batches + 1
    for table in (counts[:batches], counts[batches:-1]):
        assert max(table[-3:]) <= 2 * max(table[1:4]), table


def test_rows_with_answers_of_earlier_jobs_are_found_in_short_reads(
    store: Store, pages_read: Callable[[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_INDEXES", BATCH)
    store.get_job("job")
    counts = pages_read("_read")
    assert list(store.reused_indexes("job")) == [ROWS - 2, ROWS - 1]
    assert len(counts) == ROWS // BATCH + 1
    assert max(counts) <= 2 * max(counts[:3]), counts
