"""Rows that follow another: one outcome each, in one transaction with their count, whoever is killed."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from dray.errors import FencedError
from dray.requests.model import FOLLOWED, REUSED
from dray.requests.sharing import Follower
from dray.store import JobLease, Store
from dray.store import followers as led
from dray.store.database.schema import followers
from tests.support.stores import FINGERPRINT, claimed, failure, outcome, outcomes, specs

pytestmark = pytest.mark.integration

FOLLOWERS = [Follower(4, 0, "id-4"), Follower(5, 1, "id-5"), Follower(6, 0, "id-6"), Follower(7, 3, "id-7")]
"""Of a job whose shard has the rows 0 to 3."""


def shared_job(store: Store) -> JobLease:
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("job", "driver")
    store.add_shards(
        lease, specs(1, 4), total_rows=10, followers=[FOLLOWERS[:3], FOLLOWERS[3:]], reused=[outcomes([8, 9])]
    )
    return lease


def places(store: Store) -> dict[int, int]:
    return {row.index: row.shard for page in store.outcomes("job") for row in page}


def waiting(store: Store) -> int:
    """Rows that wait for the outcome of another, in the only job."""
    return store._read(lambda tx: int(tx.execute(select(func.count()).select_from(followers)).scalar_one()))


def test_followers_get_the_outcome_of_their_leaders_once_it_is_there(store: Store) -> None:
    job = shared_job(store)
    assert (store.counts("job").total, store.counts("job").done) == (10, 2)
    assert places(store) == {8: REUSED, 9: REUSED}
    assert store.answer_followers(job).rows == 0
    lease = claimed(store, job)
    store.commit(lease, [outcome(0)._replace(response=b'{"id":"chatcmpl-0","x":1.50}'), failure(1)])
    assert store.answer_followers(job).rows == 3
    assert store.answer_followers(job).rows == 0
    assert waiting(store) == 1
    found = {row.index: row for page in store.outcomes("job") for row in page}
    assert {index: found[index].shard for index in (4, 5, 6)} == dict.fromkeys((4, 5, 6), FOLLOWED)
    assert found[6].response == b'{"id":"chatcmpl-6","x":1.50}'
    assert (found[6].custom_id, found[6].prompt_tokens, found[6].total_seconds) == ("id-6", 1, 0.0)
    assert (found[5].error_code, found[5].error_message) == ("context_length_exceeded", "too long")
    assert (store.counts("job").done, store.counts("job").failed) == (5, 2)
    assert store.progress("job").prompt_tokens == 1, "what was computed, and no more"
    store.commit(lease, outcomes([2, 3]))
    store.finish_shard(lease)
    assert store.counts("job").pending == 1
    assert store.answer_followers(job).rows == 1
    assert store.verify_counts("job").pending == 0
    assert list(store.reused_indexes("job")) == [8, 9]


def test_pages_go_over_all_followers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led, "PAGE_ROWS", 2)
    job = shared_job(store)
    store.commit(claimed(store, job), outcomes(range(4)))
    first = store.answer_followers(job)
    assert (first.rows, first.after) == (2, 5)
    second = store.answer_followers(job, 5)
    assert second.rows == 2
    assert second.after is None or store.answer_followers(job, second.after).after is None
    assert store.verify_counts("job").done == 10


def test_large_answers_are_given_a_few_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led, "PAGE_BYTES", 1)
    job = shared_job(store)
    store.commit(claimed(store, job), outcomes(range(4)))
    after: int | None = -1
    looks = 0
    while after is not None:
        after = store.answer_followers(job, after).after
        looks += 1
    assert looks == 5
    assert store.verify_counts("job").done == 10


def test_followers_that_wait_are_looked_at_without_a_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such looks are most of a long job's: writes would keep its commits waiting."""
    monkeypatch.setattr(led, "PAGE_ROWS", 3)
    job = shared_job(store)
    with monkeypatch.context() as watched:
        watched.setattr(store, "_write", None)
        first = store.answer_followers(job)
        assert (first.rows, first.after) == (0, 6)
        second = store.answer_followers(job, 6)
        assert (second.rows, second.after) == (0, None)
    store.claim_job("job", "other", takeover=lambda owner: True)
    with pytest.raises(FencedError):
        store.answer_followers(job)


def test_a_driver_that_was_replaced_gives_nobody_an_outcome(store: Store) -> None:
    old = shared_job(store)
    store.commit(claimed(store, old), outcomes(range(4)))
    new = store.claim_job("job", "other", takeover=lambda owner: True)
    with pytest.raises(FencedError):
        store.answer_followers(old)
    assert waiting(store) == 4
    assert store.answer_followers(new).rows == 4


def test_an_ingest_that_was_killed_leaves_nothing_behind(store: Store) -> None:
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    job = store.claim_job("job", "driver")

    def broken() -> object:
        yield FOLLOWERS[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add_shards(job, specs(1, 4), total_rows=10, reused=[outcomes([8])], followers=broken())  # type: ignore[arg-type]
    assert waiting(store) == 2
    store.add_shards(job, specs(1, 4), total_rows=5, followers=[[Follower(4, 2, "id-4")]])
    assert (waiting(store), places(store)) == (1, {})
    store.add_shards(job, specs(1, 4), total_rows=5, followers=[[Follower(4, 2, "id-4")]])
    assert store.counts("job").total == 5
