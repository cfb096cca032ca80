"""Counting in pages: exact, and in nobody's way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from dray.errors import StoreFatalError
from dray.store import Store, counting, open_store, reading
from tests.support.stores import FakeClock, claimed, failure, outcome, outcomes, ready_job

pytestmark = pytest.mark.integration

ROWS = 40


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PAGE_ROWS", 7)


def between_reads(store: Store, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> list[int]:
    """Do something after each read transaction of the store; the list has an entry for each."""
    real, done = store._read, []

    def read(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        done.append(1)
        do()
        return found

    monkeypatch.setattr(store, "_read", read)
    return done


def test_the_drivers_lease_is_renewed_while_rows_are_counted(
    store: Store, store_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ready_job(store, shards=1, rows=ROWS)
    until = clock.time + job.ttl
    store.commit(claimed(store, job), outcomes(range(ROWS)))
    with open_store(store_url, clock=clock, patience=0) as other:

        def renew() -> None:
            clock.pass_seconds(10)
            other.renew_job(job)

        reads = between_reads(store, monkeypatch, renew)
        assert store.verify_counts("job").done == ROWS
    assert len(reads) >= 2 + ROWS // 7  # counters, pages, counters
    assert clock.time > until  # it would have lapsed


@pytest.mark.parametrize("round_", range(3))
def test_counts_are_those_of_the_rows(store: Store, rng: random.Random, round_: int) -> None:
    """As one statement over all of them says, which nobody interrupts."""
    job = ready_job(store, shards=4, rows=10)
    for number in range(4):
        rows = rng.sample(range(number * 10, number * 10 + 10), rng.randrange(11))
        batch = [failure(row) if rng.random() < 0.3 else outcome(row) for row in rows]
        store.commit(claimed(store, job, number), batch)
    whole = text("SELECT count(*), count(error_code) FROM results")
    rows, failed = store._read(lambda tx: tuple(tx.execute(whole).one()))
    counts = store.verify_counts("job")
    assert (counts.done, counts.failed, counts.total) == (rows - failed, failed, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM results WHERE idx = 17", "its rows give .*done=39.* its counters .*done=40"),
        ("UPDATE results SET error_code = 'x' WHERE idx = 39", "failed=1"),
        ("UPDATE results SET custom_id = 'id-2' WHERE idx = 38", "1 rows carry the custom_id"),
    ],
)
def test_what_does_not_add_up_is_found(store: Store, change: str, message: str) -> None:
    job = ready_job(store, shards=1, rows=ROWS)
    store.commit(claimed(store, job), outcomes(range(ROWS)))
    store._write(lambda tx: tx.execute(text(change)))
    with pytest.raises(StoreFatalError, match=message):
        store.verify_counts("job")


def test_rows_that_come_between_two_pages_are_counted(
    store: Store, store_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one before the page that is read: the counters differ then, and the count begins again."""
    job = ready_job(store, shards=1, rows=ROWS)
    lease = claimed(store, job)
    store.commit(lease, outcomes(range(1, ROWS - 1)))
    late = [0, ROWS - 1]
    with open_store(store_url, clock=clock) as other:
        seen = between_reads(
            store, monkeypatch, lambda: len(seen) == 4 and late and other.commit(lease, [outcome(late.pop())])
        )
        assert store.verify_counts("job").done == ROWS - 1
        assert store.verify_counts("job").done == ROWS - 1
    assert late == [0]


def test_large_answers_make_small_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAGE_BYTES", 1000)
    monkeypatch.setattr(reading, "_FETCHED_ROWS", 2)
    job = ready_job(store, shards=1, rows=ROWS)
    store.commit(claimed(store, job), [outcome(row, "x" * 300) for row in range(ROWS)])
    pages = list(store.outcomes("job"))
    assert [len(page) for page in pages] == [4] * 10
    assert [row.index for page in pages for row in page] == list(range(ROWS))


def test_large_answers_are_read_a_few_at_a_time_in_the_order_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without an answer are told at once, and of one that is larger there is nothing beside it."""
    monkeypatch.setattr(reading, "_PAGE_BYTES", 1000)
    monkeypatch.setattr(reading, "_FETCHED_ROWS", 2)
    job = ready_job(store, shards=1, rows=ROWS)
    large = outcome(7, "y" * 2000)
    others = [outcome(row, "x" * 300) if row % 2 == 0 else failure(row) for row in range(ROWS) if row != 7]
    store.commit(claimed(store, job), [large, *others])
    seen, asked, pages = store.get_job("job"), [30, 99, 3, 8, 2, 8, 10, 12, 7, 6], []
    while asked:
        found = store.answers(seen, asked)
        assert list(found) == list(dict.fromkeys(asked))[: len(found)]
        pages.append({row: None if answer is None else len(answer.response) for row, answer in found.items()})
        asked = [row for row in asked if row not in found]
    assert pages == [{30: 300, 99: None, 3: None, 8: 300, 2: 300, 10: 300}, {12: 300, 7: 2000}, {6: 300}]
