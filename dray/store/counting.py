"""Counting a job's rows, in pages: no read lasts long enough to hold a lease's commit up.

With SQLite's rollback journal a commit waits for every read to end, and a driver must commit four times a
minute to keep its job. So rows are counted a page at a time, each in a transaction of its own.

The pages together are exact all the same. Once a job's ingest is over, a row appears only in a transaction
that raises a counter of its shard, and counters never fall. Where the counters are the same before the first
page and after the last one, no row came between, and the pages have seen one state. Where they differ, the
count begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from dray.errors import StoreFatalError
from dray.requests.duplicates import IdIndex
from dray.store.database.connection import Tx, walk_the_key
from dray.store.records import Counts

PAGE_ROWS = 5000
"""Rows of one read: some 5 MB of answers to pass over, 0.05 s from memory, some seconds from a slow disk."""

_PAGE = """SELECT idx, custom_id, error_code IS NOT NULL FROM results
    WHERE job_key = {p} AND idx >= {p} ORDER BY idx LIMIT {p}"""
_PAGES = {"sqlite": _PAGE.format(p="?"), "postgresql": _PAGE.format(p="%s")}

Row = tuple[int, str | None, bool]
Read = Callable[[Callable[[Tx], list[Row]]], list[Row]]


def recount(read: Read, counters: Callable[[], Counts], job_key: int, name: str) -> tuple[Counts, Counts]:
    """What the rows themselves come to, and what the counters say. Memory stays bounded.

    Digests of the ids, 24 bytes each, go to the folder for temporary files beyond a million rows.

    Raises:
        StoreFatalError: two rows carry one custom_id.
    """
    while True:
        before = counters()
        done, failed, repeats = _count(read, job_key)
        after = counters()
        if before == after:
            break
    if repeats:
        raise StoreFatalError(
            f"store {name}: {repeats} rows carry the custom_id of another row; this is a fault in dray"
        )
    return Counts(total=after.total, done=done, failed=failed), after


def _count(read: Read, job_key: int) -> tuple[int, int, int]:
    """Answered rows, failed ones, and those whose custom_id another row has."""
    rows = failed = first = 0
    with IdIndex() as ids:
        while page := read(partial(_page, job_key=job_key, first=first)):
            for index, custom_id, is_error in page:
                failed += bool(is_error)
                if custom_id is not None:
                    ids.add(index, custom_id)
            rows += len(page)
            first = page[-1][0] + 1
        return rows - failed, failed, len(ids.repeats())


def _page(tx: Tx, job_key: int, first: int) -> list[Row]:
    walk_the_key(tx)
    with closing(tx.connection.connection.cursor()) as cursor:
        cursor.execute(_PAGES[tx.dialect], (job_key, first, PAGE_ROWS))
        return list(cursor.fetchall())
