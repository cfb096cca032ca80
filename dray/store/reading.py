"""Reading results back: counts, progress, pages of outcomes. Functions on one open transaction."""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import func, select

from dray.store.connection import Tx
from dray.store.records import Counts, Progress, StoredOutcome
from dray.store.schema import jobs, results, shards

_OUTCOME = """idx, custom_id, {response}, error_code, error_message, prompt_tokens, cached_tokens,
    completion_tokens, queue_seconds, first_token_seconds, total_seconds, shard, epoch, committed_at"""
_PAGE = "SELECT {columns} FROM results WHERE job_key = {p} AND idx > {p} ORDER BY idx LIMIT {p}"
_PAGES = {
    "sqlite": _PAGE.format(columns=_OUTCOME.format(response="CAST(response AS BLOB)"), p="?"),
    "postgresql": _PAGE.format(columns=_OUTCOME.format(response="convert_to(response, 'UTF8')"), p="%s"),
}

_FETCHED_ROWS = 100
_PAGE_BYTES = 32 << 20
"""Bytes of answers of one read: a fraction of a second, for which SQLite keeps commits waiting."""


def progress(tx: Tx, job_key: int) -> Progress:
    """Counts and tokens from the shards' counters: as many rows read as there are shards."""
    totals = shards.c.done, shards.c.failed, shards.c.prompt_tokens, shards.c.cached_tokens
    sums = [func.coalesce(func.sum(column), 0) for column in (*totals, shards.c.completion_tokens)]
    done, failed, prompt, cached, completion = tx.execute(
        select(*sums).where(shards.c.job_key == job_key)
    ).one()
    total, rejected = tx.execute(select(jobs.c.total, jobs.c.rejected).where(jobs.c.job_key == job_key)).one()
    return Progress(
        counts=Counts(total=int(total or 0), done=int(done), failed=int(failed) + rejected),
        prompt_tokens=int(prompt),
        cached_tokens=int(cached),
        completion_tokens=int(completion),
    )


def page(tx: Tx, job_key: int, after: int, limit: int) -> list[StoredOutcome]:
    """The next ``limit`` outcomes past index ``after``; fewer, where they are large."""
    if tx.dialect == "postgresql":
        # A table filled a moment ago has no statistics yet, and then the planner would sort all the
        # rows that are left, page after page, rather than walk the primary key.
        tx.connection.exec_driver_sql("SET LOCAL enable_sort = off")
    # Straight from the driver's cursor: SQLAlchemy's row objects would double the time.
    options = {"binary": True} if tx.dialect == "postgresql" else {}
    with closing(tx.connection.connection.cursor(**options)) as cursor:
        cursor.execute(_PAGES[tx.dialect], (job_key, after, limit))
        found: list[StoredOutcome] = []
        size = 0
        # SQLite reads rows as they are fetched, and no writer commits meanwhile.
        while size < _PAGE_BYTES and (rows := cursor.fetchmany(_FETCHED_ROWS)):
            found += map(StoredOutcome._make, rows)
            size += sum(len(row[2]) for row in rows if row[2] is not None)
        return found


def done_indexes(tx: Tx, job_key: int, first: int, last: int) -> list[int]:
    """Terminal indexes in [first, last), ascending."""
    rows = tx.execute(
        select(results.c.idx)
        .where(results.c.job_key == job_key, results.c.idx >= first, results.c.idx < last)
        .order_by(results.c.idx)
    )
    return list(rows.scalars())
