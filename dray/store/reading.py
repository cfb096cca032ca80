"""Reading results back: counts, progress, pages of outcomes. Functions on one open transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, cast, func, select

from dray.errors import UnknownJobError
from dray.requests.model import REUSED
from dray.requests.sharing import Answer
from dray.store.database.connection import Tx, walk_the_key
from dray.store.database.schema import FIELD_OF, jobs, results, shards
from dray.store.jobs import same
from dray.store.records import Counts, Job, Progress, StoredOutcome

_COLUMN_OF = {field: column for column, field in FIELD_OF.items()}
_PAGE = "SELECT {columns} FROM results WHERE {rows} ORDER BY idx LIMIT {limit}"
_ROWS = "job_key = %(key)s AND idx > %(after)s"
_LAST_INDEX = 2**63 - 1


_UP_TO_BYTES = """{idx} <= coalesce((
    SELECT min(idx) FROM (
        SELECT {idx} AS idx,
            sum(octet_length({response})) OVER (ORDER BY {idx} ROWS UNBOUNDED PRECEDING) AS so_far
        FROM {rows} ORDER BY {idx} LIMIT %(limit)s
    ) AS page WHERE so_far >= %(most)s
), {last})"""


def up_to_bytes(rows: str, idx: str, response: str) -> str:
    """A condition of PostgreSQL that ends a page where its answers reach ``%(most)s`` bytes.

    psycopg holds all that a query gives, so the server has to end it. For that it reads no answer: it knows
    how long each is. ``rows`` are the page's FROM and WHERE, ``idx`` and ``response`` its columns.
    """
    return _UP_TO_BYTES.format(rows=rows, idx=idx, response=response, last=_LAST_INDEX)


def octets(tx: Tx, text: ColumnElement[Any]) -> ColumnElement[int]:
    """Bytes of a text. No database reads the text for it, but SQLite before 3.43."""
    if tx.dialect == "sqlite" and sqlite3.sqlite_version_info < (3, 43):
        return func.length(cast(text, LargeBinary))
    return func.octet_length(text)


def _page_query(response: str, rows: str, limit: str, more: str = "") -> str:
    """The query for a page, its columns in the order of StoredOutcome's fields."""
    columns = _COLUMN_OF | {"response": response}
    return _PAGE.format(
        columns=", ".join(columns[field] for field in StoredOutcome._fields) + more, rows=rows, limit=limit
    )


_SQLITE_PAGE = _page_query("CAST(response AS BLOB)", "job_key = ? AND idx > ?", "?")
_POSTGRES_PAGE = _page_query(
    "convert_to(response, 'UTF8')",
    _ROWS + " AND " + up_to_bytes("results WHERE " + _ROWS, "idx", "response"),
    "%(limit)s",
)

_SMALL = "coalesce(octet_length(response) > %(small)s, false)"
# Most pages have small answers only, and this is all that they take: to sum lengths takes a third longer.
_SMALL_PAGE = _page_query(
    f"CASE WHEN NOT {_SMALL} THEN convert_to(response, 'UTF8') END", _ROWS, "%(limit)s", more=f", {_SMALL}"
)

_INDEXES = 5000
_FETCHED_ROWS = 16  # of SQLite at a time: so many large answers may come beyond the bound
_PAGE_BYTES = 32 << 20
"""Bytes of answers of one read, or a single one: a fraction of a second, for which SQLite keeps commits
waiting, and what a process that reads keeps in memory."""


def progress(tx: Tx, job_key: int) -> Progress:
    """Counts and tokens from the shards' counters: as many rows read as there are shards.

    Raises:
        UnknownJobError: the job was deleted since its key was read.
    """
    totals = shards.c.done, shards.c.failed, shards.c.prompt_tokens, shards.c.cached_tokens
    sums = [func.coalesce(func.sum(column), 0) for column in (*totals, shards.c.completion_tokens)]
    done, failed, prompt, cached, completion = tx.execute(
        select(*sums).where(shards.c.job_key == job_key)
    ).one()
    others = select(jobs.c.total, jobs.c.rejected, jobs.c.shared_done, jobs.c.shared_failed)
    found = tx.execute(others.where(jobs.c.job_key == job_key)).first()
    if found is None:
        raise UnknownJobError("the job was deleted meanwhile; `dray jobs` lists the jobs of its store")
    total, rejected, answered, refused = found
    counts = Counts(total=int(total or 0), done=int(done) + answered, failed=int(failed) + rejected + refused)
    return Progress(
        counts=counts,
        prompt_tokens=int(prompt),
        cached_tokens=int(cached),
        completion_tokens=int(completion),
    )


def page(tx: Tx, job_key: int, after: int, limit: int) -> list[StoredOutcome]:
    """The next ``limit`` outcomes past index ``after``; fewer, where they are large."""
    walk_the_key(tx)
    # Straight from the driver's cursor: SQLAlchemy's row objects would double the time.
    if tx.dialect == "postgresql":
        asked = {"key": job_key, "after": after, "limit": limit, "most": _PAGE_BYTES}
        with closing(tx.connection.connection.cursor(binary=True)) as cursor:
            cursor.execute(_SMALL_PAGE, {**asked, "small": _PAGE_BYTES // limit})
            rows = cursor.fetchall()
            if any(row[-1] for row in rows):
                cursor.execute(_POSTGRES_PAGE, asked)
                return [StoredOutcome._make(row) for row in cursor.fetchall()]
        return [StoredOutcome._make(row[:-1]) for row in rows]
    found: list[StoredOutcome] = []
    size = 0
    with closing(tx.connection.connection.cursor()) as cursor:
        cursor.execute(_SQLITE_PAGE, (job_key, after, limit))
        # SQLite reads rows as they are fetched, and no writer commits meanwhile.
        while size < _PAGE_BYTES and (fetched := cursor.fetchmany(_FETCHED_ROWS)):
            rows = [StoredOutcome._make(row) for row in fetched]
            size += sum(len(row.response) for row in rows if row.response is not None)
            found += rows
    return found


def reused(tx: Tx, job_key: int, after: int) -> tuple[list[int], int | None]:
    """Which of the next rows past index ``after`` have an answer of an earlier job, and the last index.

    That is None where there are no more rows. A search for the next page of such rows alone would read all
    rows between them: no index has them.
    """
    walk_the_key(tx)
    own = (results.c.job_key == job_key) & (results.c.idx > after)
    query = select(results.c.idx, results.c.shard).where(own).order_by(results.c.idx).limit(_INDEXES)
    rows = tx.execute(query).all()
    return [index for index, shard in rows if shard == REUSED], (rows[-1][0] if rows else None)


def answered(tx: Tx, job_key: int, indexes: Sequence[int]) -> Sequence[int]:
    """Which of some rows have an answer and no error."""
    own = (results.c.job_key == job_key) & results.c.idx.in_(indexes) & results.c.response.is_not(None)
    return tx.execute(select(results.c.idx).where(own)).scalars().all()


def error_codes(tx: Tx, job_key: int, indexes: Sequence[int]) -> dict[int, str]:
    """The codes of those of some rows that are error rows."""
    own = (results.c.job_key == job_key) & results.c.idx.in_(indexes) & results.c.error_code.is_not(None)
    rows = tx.execute(select(results.c.idx, results.c.error_code).where(own)).all()
    return {index: str(code) for index, code in rows}


def answers(tx: Tx, seen: Job, indexes: Sequence[int]) -> dict[int, Answer | None]:
    """The answers to the first of some rows, up to ``_PAGE_BYTES`` of them; None for rows without an answer.

    One row at least is looked at. None has an answer where another job has the key by now. To be asked in a
    snapshot.
    """
    if tx.execute(select(jobs.c.job_key).where(same(seen))).first() is None:
        return dict.fromkeys(indexes)
    found: dict[int, Answer | None] = dict.fromkeys(_first_of(tx, seen.key, list(dict.fromkeys(indexes))))
    columns = results.c.idx, results.c.response, results.c.prompt_tokens, results.c.completion_tokens
    own = (results.c.job_key == seen.key) & results.c.idx.in_(found) & results.c.response.is_not(None)
    for index, text, prompt, completion in tx.execute(select(*columns).where(own)):
        found[index] = Answer(index, text.encode(), prompt, completion)
    return found


def _first_of(tx: Tx, job_key: int, indexes: Sequence[int]) -> Iterator[int]:
    """The first of some rows, up to that whose answer makes ``_PAGE_BYTES`` full."""
    step = _FETCHED_ROWS if tx.dialect == "sqlite" else len(indexes)  # see octets
    held = 0
    for begin in range(0, len(indexes), step):
        some = indexes[begin : begin + step]
        own = (results.c.job_key == job_key) & results.c.idx.in_(some)
        sizes = {
            row[0]: row[1]
            for row in tx.execute(select(results.c.idx, octets(tx, results.c.response)).where(own))
        }
        for index in some:
            yield index
            held += sizes.get(index) or 0
            if held >= _PAGE_BYTES:
                return
