"""PostgreSQL gives a reader no more answers at a time than it asked for: psycopg holds all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import psycopg
import pytest

from dray.requests.sharing import Follower
from dray.store import Store, open_store, reading
from dray.store import followers as led
from tests.support.stores import FINGERPRINT, claimed, failure, outcome, ready_job, specs

ROWS = 40
ANSWER = "x" * 300


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    with open_store(postgres_url) as opened:
        yield opened


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many answers each query of a driver's own cursor gave."""
    counts: list[int] = []
    execute = psycopg.Cursor.execute

    def counted(self: psycopg.Cursor[Any], *arguments: Any, **options: Any) -> Any:
        found = execute(self, *arguments, **options)
        result = self.pgresult
        if self.format == psycopg.pq.Format.BINARY and result is not None and result.nfields:
            cells = product(range(result.ntuples), range(result.nfields))
            counts.append(sum(len(result.get_value(*cell) or b"") >= len(ANSWER) for cell in cells))
        return found

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    return counts


def test_a_page_of_answers(store: Store, given: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Error rows have no answer, and count nothing."""
    monkeypatch.setattr(reading, "_PAGE_BYTES", 1000)
    lease = claimed(store, ready_job(store, shards=1, rows=ROWS))
    store.commit(lease, [outcome(row, ANSWER) if row % 2 else failure(row) for row in range(ROWS)])
    pages = list(store.outcomes("job"))
    assert [len(page) for page in pages] == [8] * 5
    assert [row.index for page in pages for row in page] == list(range(ROWS))
    assert given == [0, 4] * 5 + [0]  # first, those that are small


def test_a_page_with_one_answer_that_is_larger(
    store: Store, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PAGE_BYTES", 100)
    lease = claimed(store, ready_job(store, shards=1, rows=3))
    store.commit(lease, [outcome(row, ANSWER) for row in range(3)])
    assert [[row.index for row in page] for page in store.outcomes("job")] == [[0], [1], [2]]
    assert given == [0, 1] * 3 + [0]


def test_a_page_of_rows_that_follow_others(
    store: Store, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led, "PAGE_BYTES", 1000)
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    job = store.claim_job("job", "driver")
    following = [Follower(index, 0, f"id-{index}") for index in range(1, ROWS)]
    store.add_shards(job, specs(1, 1), total_rows=ROWS, followers=[following])
    store.commit(claimed(store, job), [outcome(0, ANSWER)])
    after: int | None = -1
    while after is not None:
        after = store.answer_followers(job, after).after
    assert given == [4] * 9 + [3]
    assert store.verify_counts("job").done == ROWS
