"""Reading results back: counts, progress, pages of outcomes. Functions on one open transaction."""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import func, select

from dray.errors import StoreFatalError
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


def recount(tx: Tx, job_key: int, url: str) -> Counts:
    """Counts from the rows themselves, after proving that no two of them carry one custom_id."""
    ids = results.c.custom_id
    rows, failed, named, names = tx.execute(
        select(
            func.count(), func.count(results.c.error_code), func.count(ids), func.count(ids.distinct())
        ).where(results.c.job_key == job_key)
    ).one()
    if named != names:
        raise StoreFatalError(
            f"store {url}: {named - names} rows carry the custom_id of another row; this is a fault in dray"
        )
    total = tx.execute(select(jobs.c.total).where(jobs.c.job_key == job_key)).scalar_one()
    return Counts(total=total or 0, done=rows - failed, failed=failed)


def page(tx: Tx, job_key: int, after: int, limit: int) -> list[StoredOutcome]:
    """The next ``limit`` outcomes past index ``after``."""
    if tx.dialect == "postgresql":
        # A table filled a moment ago has no statistics yet, and then the planner would sort all the
        # rows that are left, page after page, rather than walk the primary key.
        tx.connection.exec_driver_sql("SET LOCAL enable_sort = off")
    # Straight from the driver's cursor: SQLAlchemy's row objects would double the time.
    options = {"binary": True} if tx.dialect == "postgresql" else {}
    with closing(tx.connection.connection.cursor(**options)) as cursor:
        cursor.execute(_PAGES[tx.dialect], (job_key, after, limit))
        return list(map(StoredOutcome._make, cursor.fetchall()))


def done_indexes(tx: Tx, job_key: int, first: int, last: int) -> list[int]:
    """Terminal indexes in [first, last), ascending."""
    rows = tx.execute(
        select(results.c.idx)
        .where(results.c.job_key == job_key, results.c.idx >= first, results.c.idx < last)
        .order_by(results.c.idx)
    )
    return list(rows.scalars())
