"""Rows that follow another: recorded at ingest, answered once their leader is. Functions on one transaction.

A follower stands in ``followers`` until the transaction that puts its outcome into ``results``, counts it,
and deletes it there. So it has one outcome, whatever is killed or repeated. Only the job's driver does this:
it holds the job's row from its first statement on, and a driver that was replaced gets no further than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import delete, insert, select, update

from dray.codes import ErrorCode
from dray.requests.model import FOLLOWED, Outcome
from dray.requests.row_ids import with_index
from dray.requests.sharing import Follower
from dray.store.commit import insert_new
from dray.store.database.connection import Tx, walk_the_key
from dray.store.database.schema import followers, jobs, results
from dray.store.jobs import check_driver, driven
from dray.store.reading import up_to_bytes
from dray.store.records import Followed, JobLease

PAGE_ROWS = 1000
"""Followers of one transaction."""

PAGE_BYTES = 16 << 20
"""Bytes of their answers at most, or one of them."""

_PAGE = """SELECT f.idx, f.custom_id, f.leader, r.idx IS NOT NULL, r.error_code, r.error_message,
    r.prompt_tokens, r.completion_tokens, {response}, {bytes} FROM {rows} ORDER BY f.idx LIMIT {limit}"""
_ROWS = """followers f LEFT JOIN results r ON r.job_key = f.job_key AND r.idx = f.leader
    WHERE f.job_key = {key} AND f.idx > {after}"""
_SQLITE_PAGE = _PAGE.format(
    response="CAST(r.response AS BLOB)",
    bytes="length(CAST(r.response AS BLOB))",
    rows=_ROWS.format(key="?", after="?"),
    limit="?",
)
_FOLLOWED = _ROWS.format(key="%(key)s", after="%(after)s")
_POSTGRES_PAGE = _PAGE.format(
    response="convert_to(r.response, 'UTF8')",
    bytes="octet_length(r.response)",
    rows=_FOLLOWED + " AND " + up_to_bytes(_FOLLOWED, "f.idx", "r.response"),
    limit="%(limit)s",
)


def record(tx: Tx, lease: JobLease, rows: Sequence[Follower]) -> int:
    """Note followers of a job whose ingest is not over; how many. Those that are noted already stay."""
    check_driver(tx, lease)
    if not rows:
        return 0
    known = select(followers.c.idx).where(
        followers.c.job_key == lease.key, followers.c.idx.in_([row.index for row in rows])
    )
    there = set(tx.execute(known).scalars())
    fresh = [
        {"job_key": lease.key, "idx": row.index, "leader": row.leader, "custom_id": row.custom_id}
        for row in rows
        if row.index not in there
    ]
    if fresh:
        tx.execute(insert(followers), fresh)
    return len({row.index for row in rows})


def look(tx: Tx, lease: JobLease, after: int) -> tuple[bool, int | None]:
    """Whether any of the next followers past index ``after`` may get an outcome, and the last one's index.

    That is None where there are no more. It reads no answer and locks nothing: most looks find that all wait.
    """
    driven(tx, lease)
    walk_the_key(tx)
    leads = (results.c.job_key == followers.c.job_key) & (results.c.idx == followers.c.leader)
    query = (
        select(followers.c.idx, results.c.idx.is_not(None))
        .select_from(followers.outerjoin(results, leads))
        .where(followers.c.job_key == lease.key, followers.c.idx > after)
    )
    rows = tx.execute(query.order_by(followers.c.idx).limit(PAGE_ROWS)).all()
    return any(there for _, there in rows), (rows[-1][0] if len(rows) == PAGE_ROWS else None)


def answer(tx: Tx, lease: JobLease, after: int) -> Followed:
    """Look at the next followers past index ``after``; those whose leader has an outcome get it."""
    check_driver(tx, lease, alone=True)
    looked, ready = _page(tx, lease.key, after)
    if ready:
        fresh = insert_new(tx, lease.key, FOLLOWED, 0, ready)
        done = followers.c.idx.in_([outcome.index for outcome in ready])
        tx.execute(delete(followers).where(followers.c.job_key == lease.key, done))
        failed = sum(outcome.failed for outcome in fresh)
        tx.execute(
            update(jobs)
            .where(jobs.c.job_key == lease.key)
            .values(
                shared_done=jobs.c.shared_done + len(fresh) - failed,
                shared_failed=jobs.c.shared_failed + failed,
            )
        )
    return Followed(rows=len(ready), after=looked)


def _page(tx: Tx, job_key: int, after: int) -> tuple[int | None, list[Outcome]]:
    """Index of the last follower that was looked at, None for no more; and the outcomes that are there."""
    ready: list[Outcome] = []
    last, rows, size = None, 0, 0
    walk_the_key(tx)
    options = {"binary": True} if tx.dialect == "postgresql" else {}
    with closing(tx.connection.connection.cursor(**options)) as cursor:
        if tx.dialect == "postgresql":
            asked = {"key": job_key, "after": after, "limit": PAGE_ROWS, "most": PAGE_BYTES}
            cursor.execute(_POSTGRES_PAGE, asked)
        else:
            cursor.execute(_SQLITE_PAGE, (job_key, after, PAGE_ROWS))
        for row in iter(cursor.fetchone, None):
            if row[3]:
                ready.append(_outcome(row))
            rows, last, size = rows + 1, row[0], size + (row[9] or 0)
            if size >= PAGE_BYTES:
                break
    more = rows == PAGE_ROWS or size >= PAGE_BYTES
    return (last if more else None), ready


def _outcome(row: Sequence[Any]) -> Outcome:
    """The leader's outcome as the follower's own. What it took is in the leader's row alone."""
    index, custom_id, leader, _, error_code, error_message, prompt, completion, response, _ = row
    code: ErrorCode | None = error_code
    return Outcome(
        index=index,
        custom_id=custom_id,
        response=None if response is None else with_index(bytes(response), leader, index),
        error_code=code,
        error_message=error_message,
        prompt_tokens=prompt,
        completion_tokens=completion,
    )
