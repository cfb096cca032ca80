"""Contract: shards, their leases, and the commit."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from dray.errors import FencedError, StoreFatalError
from dray.requests.model import Outcome
from dray.store import (
    Charge,
    ShardSpec,
    ShardState,
    Store,
    StoredNotice,
    StoredOutcome,
    open_store,
    routing,
)
from tests.support.stores import FINGERPRINT, FakeClock, claimed, failure, outcome, outcomes, ready_job, specs

pytestmark = pytest.mark.integration


def part(number: int, first: int, rows: int, *, inherited: int = 0) -> ShardSpec:
    return ShardSpec(
        number=number,
        uri="spool.jsonl",
        offset=first,
        length=rows,
        rows=rows,
        first_position=first,
        inherited=inherited,
    )


def stored(store: Store) -> list[StoredOutcome]:
    return [row for page in store.outcomes("job", batch=3) for row in page]


def test_a_held_shard_is_not_to_be_had(store: Store, clock: FakeClock) -> None:
    job = ready_job(store)
    held = claimed(store, job, owner="one")
    assert (held.epoch, store.shards("job")[0].lease_until) == (1, clock.time + 90)
    assert store.claim_shard(job, 0, owner="two") is None
    assert store.claim_shard(job, 99, owner="two") is None


def test_a_lapsed_lease_can_be_claimed_and_its_holder_is_fenced(store: Store, clock: FakeClock) -> None:
    job = ready_job(store)
    zombie = claimed(store, job, owner="one")
    clock.pass_seconds(90)
    heir = claimed(store, job, owner="two")
    assert heir.epoch == zombie.epoch + 1
    for act in (
        lambda: store.commit(zombie, outcomes([0])),
        lambda: store.renew_shard(zombie),
        lambda: store.finish_shard(zombie),
        lambda: store.release_shard(zombie, cause="SPOT"),
        lambda: store.split_shard(zombie, [part(-1, 0, 2), part(-1, 2, 2)], cause="POISON"),
    ):
        with pytest.raises(FencedError):
            act()
    assert stored(store) == []
    assert store.shards("job")[0].interruptions == 1
    assert [attempt.cause for attempt in store.attempts("job")] == ["LEASE_EXPIRED", None]


@pytest.mark.parametrize("act", ["finish", "renew", "release"])
def test_what_the_holder_of_a_lapsed_lease_does_while_another_looks_for_a_place_stays(
    postgres_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """On PostgreSQL the two meet: the holder locks the shard, the other the job. SQLite has one writer."""
    place = routing.place
    with open_store(postgres_url, clock=clock) as store, open_store(postgres_url, clock=clock) as other:
        job = ready_job(store, shards=1)
        holder = claimed(store, job, owner="old")
        store.commit(holder, outcomes([0, 1, 2, 3] if act == "finish" else [0, 1]))
        clock.pass_seconds(90)

        def placed(*arguments: Any) -> str | None:
            if act == "finish":
                store.finish_shard(holder)
            elif act == "renew":
                store.renew_shard(holder)
            else:
                store.release_shard(holder, cause="SPOT")
            return place(*arguments)

        monkeypatch.setattr(routing, "place", placed)
        assert other.place_shard(job, 0, owner="new").lease is None
        shard = store.shards("job")[0]
        attempt = store.attempts("job")[0]
    state = {"finish": ShardState.DONE, "renew": ShardState.LEASED, "release": ShardState.PENDING}[act]
    cause = {"finish": "DONE", "renew": None, "release": "SPOT"}[act]
    assert (shard.state, attempt.cause) == (state, cause)
    assert shard.interruptions == (1 if act == "release" else 0)


def test_a_lapsed_lease_that_nobody_took_still_commits(store: Store, clock: FakeClock) -> None:
    lease = claimed(store, ready_job(store))
    clock.pass_seconds(1000)
    assert store.commit(lease, outcomes([0])).inserted == 1
    assert store.shards("job")[0].lease_until == clock.time + 90


def test_renewing_extends_by_the_ttl(store: Store, clock: FakeClock) -> None:
    lease = claimed(store, ready_job(store))
    clock.pass_seconds(80)
    store.renew_shard(lease)
    assert store.shards("job")[0].lease_until == clock.time + 90


def test_the_same_owner_may_claim_again(store: Store) -> None:
    job = ready_job(store)
    first = claimed(store, job, owner="one")
    assert claimed(store, job, owner="one").epoch == first.epoch + 1
    with pytest.raises(FencedError):
        store.commit(first, outcomes([0]))
    assert store.shards("job")[0].interruptions == 0


def test_a_holder_of_the_same_epoch_is_another_one(store: Store) -> None:
    """As with drivers: a database that lost its last transactions gives an epoch a second time."""
    lease = claimed(store, ready_job(store), owner="one")
    twin = replace(lease, owner="another")
    with pytest.raises(FencedError):
        store.commit(twin, outcomes([0]))
    with pytest.raises(FencedError):
        store.release_shard(twin, cause="SPOT")
    assert store.commit(lease, outcomes([0])).inserted == 1


def test_a_commit_stores_every_field(store: Store, clock: FakeClock) -> None:
    lease = claimed(store, ready_job(store))
    given = [outcome(0, '{"a": "é\\u0000"}'), failure(1)]
    receipt = store.commit(lease, given)
    assert (receipt.inserted, receipt.signals.stop) == (2, False)
    rows = stored(store)
    assert [Outcome(**{name: getattr(row, name) for name in Outcome._fields}) for row in rows] == given
    assert [(row.shard, row.epoch, row.committed_at) for row in rows] == [(0, 1, clock.time)] * 2
    progress = store.progress("job")
    assert (progress.counts.done, progress.counts.failed, progress.counts.pending) == (1, 1, 6)
    assert (progress.prompt_tokens, progress.cached_tokens, progress.completion_tokens) == (1, 1, 2)


def test_repeating_a_commit_changes_nothing(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    store.commit(lease, outcomes([0, 1], "first"))
    before = stored(store), store.progress("job"), store.attempts("job")
    assert store.commit(lease, outcomes([0, 1], "second")).inserted == 0
    assert (stored(store), store.progress("job"), store.attempts("job")) == before
    assert store.commit(lease, outcomes([1, 2], "second")).inserted == 1
    assert [row.response for row in stored(store)] == [b"first", b"first", b"second"]
    assert store.verify_counts("job").done == 3


def test_the_first_of_a_pair_in_one_commit_stays(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    assert store.commit(lease, [outcome(0, "first"), outcome(0, "second")]).inserted == 1
    assert [row.response for row in stored(store)] == [b"first"]
    assert store.verify_counts("job").done == 1


def test_an_empty_commit_extends_the_lease(store: Store, clock: FakeClock) -> None:
    lease = claimed(store, ready_job(store))
    clock.pass_seconds(10)
    assert store.commit(lease, []).inserted == 0
    assert store.shards("job")[0].lease_until == clock.time + 90


def test_a_commit_tells_of_a_cancel(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    store.request_cancel("job")
    assert store.commit(lease, outcomes([0])).signals.cancelled


def test_a_shard_is_done_only_with_all_its_rows(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    store.commit(lease, outcomes([0, 1, 2]))
    with pytest.raises(StoreFatalError, match="1 of its rows"):
        store.finish_shard(lease)
    assert store.shards("job")[0].state is ShardState.LEASED
    store.commit(lease, [failure(3)])
    store.finish_shard(lease)
    store.finish_shard(lease)  # its acknowledgement may have been lost
    assert store.shards("job")[0].state is ShardState.DONE
    assert store.claim_shard(store.claim_job("job", "driver"), 0, owner="two") is None
    attempt = store.attempts("job")[0]
    assert (attempt.cause, attempt.done, attempt.failed) == ("DONE", 3, 1)


def test_a_released_shard_keeps_its_rows(store: Store) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    store.commit(lease, outcomes([0, 3]))
    store.note_attempt(lease, node="n1")
    store.release_shard(lease, cause="SPOT", detail="notice")
    store.release_shard(lease, cause="SPOT", detail="notice")
    shard = store.shards("job")[0]
    assert (shard.state, shard.remaining, shard.interruptions) == (ShardState.PENDING, 2, 1)
    attempt = store.attempts("job")[0]
    assert (attempt.cause, attempt.detail, attempt.node) == ("SPOT", "notice", "n1")
    heir = claimed(store, job)
    store.commit(heir, outcomes([1, 2]))
    store.finish_shard(heir)
    assert [row.epoch for row in stored(store)] == [1, 2, 2, 1]


def test_a_driver_takes_back_a_shard_whose_holder_is_dead(store: Store) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    store.commit(lease, outcomes([0]))
    for _ in range(2):
        store.take_back(job, 0, cause="NODE_LOSS", detail="worker process died")
    shard = store.shards("job")[0]
    assert (shard.state, shard.remaining, shard.interruptions) == (ShardState.PENDING, 3, 1)
    assert [(one.cause, one.detail) for one in store.attempts("job")] == [
        ("NODE_LOSS", "worker process died")
    ]
    with pytest.raises(FencedError):
        store.commit(lease, outcomes([1]))


def test_a_driver_takes_back_nothing_that_is_finished_or_anothers(store: Store) -> None:
    """A task's process may die after it has finished its shard; each job numbers its shards from 0."""
    other, job = ready_job(store, "other"), ready_job(store)
    held = [claimed(store, other, owner="another") for _ in range(3)][-1]
    finished, lease = claimed(store, job, 0), claimed(store, job, 1)
    store.commit(finished, outcomes(range(4)))
    store.finish_shard(finished)
    for number in range(2):
        store.take_back(job, number, cause="NODE_LOSS")
    assert [shard.state for shard in store.shards("job")] == [ShardState.DONE, ShardState.PENDING]
    assert [one.cause for one in store.attempts("job")] == ["DONE", "NODE_LOSS"]
    with pytest.raises(FencedError):
        store.commit(lease, outcomes([4]))
    assert store.commit(held, outcomes([0])).inserted == 1


def test_a_part_of_the_spool_is_moved_for_its_own_shards_alone(store: Store) -> None:
    ready_job(store, "other")
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    job = store.claim_job("job", "driver")
    parts = [replace(spec, uri=f"part-{spec.number % 2}") for spec in specs(3, 4)]
    store.add_shards(job, parts, total_rows=12)
    store.move_shards(job, {"part-0": "moved", "spool.jsonl": "of another job"})
    assert [shard.uri for shard in store.shards("job")] == ["moved", "part-1", "moved"]
    assert {shard.uri for shard in store.shards("other")} == {"spool.jsonl"}


def test_a_driver_that_was_replaced_takes_nothing_back(store: Store) -> None:
    old = ready_job(store)
    new = store.claim_job("job", "two", takeover=lambda owner: True)
    lease = claimed(store, new)
    with pytest.raises(FencedError):
        store.take_back(old, 0, cause="NODE_LOSS")
    assert store.commit(lease, outcomes([0])).inserted == 1  # its shard is still its own


def test_interruptions_count_only_without_progress(store: Store) -> None:
    job = ready_job(store)
    for _ in range(3):
        store.release_shard(claimed(store, job), cause="NODE_LOSS")
    assert store.shards("job")[0].interruptions == 3
    lease = claimed(store, job)
    store.commit(lease, outcomes([0]))
    store.release_shard(lease, cause="ENGINE_CRASH")
    assert store.shards("job")[0].interruptions == 0
    assert store.causes("job") == {"NODE_LOSS": 3, "ENGINE_CRASH": 1}


def test_a_split_shard_goes_on_in_its_parts(store: Store) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    store.commit(lease, outcomes([1]))
    parts = store.split_shard(lease, [part(-1, 0, 2, inherited=1), part(-1, 2, 2)], cause="POISON")
    assert parts == store.split_shard(lease, [part(-1, 0, 2, inherited=1), part(-1, 2, 2)], cause="POISON")
    assert [(shard.number, shard.inherited, shard.remaining) for shard in parts] == [(2, 1, 1), (3, 0, 2)]
    with pytest.raises(FencedError):
        store.commit(lease, outcomes([2]))
    for number, rows in ((2, [0, 1]), (3, [2, 3]), (1, [4, 5, 6, 7])):
        child = claimed(store, job, number)
        store.commit(child, outcomes(rows, "child"))
        store.finish_shard(child)
    assert [shard.state for shard in store.shards("job")] == [
        ShardState.SPLIT,
        ShardState.DONE,
        ShardState.DONE,
        ShardState.DONE,
    ]
    assert store.whole_shards("job") == 3
    assert store.verify_counts("job").done == 8


def test_a_split_that_is_repeated_charges_once_and_one_that_is_too_late_nothing(store: Store) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    parts = [part(-1, 0, 2), part(-1, 2, 2)]
    lost = Charge(budget="infra", event="0/1", cause="NODE_LOSS")
    for _ in range(2):
        store.split_shard(lease, parts, cause="NODE_LOSS", charged=[lost])
    assert store.charges("job") == [lost]
    late = claimed(store, job, 1)
    store.take_back(job, 1, cause="NODE_LOSS")
    with pytest.raises(FencedError):
        store.split_shard(
            late, [part(-1, 4, 2), part(-1, 6, 2)], cause="x", charged=[replace(lost, event="1/1")]
        )
    assert store.charges("job") == [lost]


def test_parts_must_hold_the_shard(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    with pytest.raises(StoreFatalError, match="parts"):
        store.split_shard(lease, [part(-1, 0, 2)], cause="POISON")
    with pytest.raises(StoreFatalError, match="parts"):
        store.split_shard(lease, [part(-1, 0, 2), part(-1, 6, 2)], cause="POISON")
    with pytest.raises(StoreFatalError, match="parts"):
        store.split_shard(lease, [part(-1, 0, 2), part(-1, 2, 2), part(-1, 0, 2)], cause="POISON")
    assert store.shards("job")[0].state is ShardState.LEASED


@pytest.mark.parametrize("inherited", [(0, 0), (1, 0), (0, 1), (1, 2), (3, -1)])
def test_parts_must_know_of_each_outcome(store: Store, inherited: tuple[int, int]) -> None:
    """A commit whose acknowledgement was lost may have come after the holder counted."""
    lease = claimed(store, ready_job(store))
    store.commit(lease, outcomes([1, 3]))
    parts = [part(-1, first, 2, inherited=rows) for first, rows in zip((0, 2), inherited, strict=True)]
    with pytest.raises(StoreFatalError, match="2 of them with an outcome"):
        store.split_shard(lease, parts, cause="POISON")
    assert store.shards("job")[0].state is ShardState.LEASED
    assert (
        len(
            store.split_shard(
                lease, [part(-1, 0, 2, inherited=1), part(-1, 2, 2, inherited=1)], cause="POISON"
            )
        )
        == 2
    )


def test_a_lease_says_how_many_rows_have_an_outcome(store: Store) -> None:
    job = ready_job(store)
    first = claimed(store, job)
    assert first.terminal == 0
    store.commit(first, [outcome(2), failure(0)])
    second = claimed(store, job)
    assert second.terminal == 2
    left, _ = store.split_shard(second, [part(-1, 0, 3, inherited=2), part(-1, 3, 1)], cause="POISON")
    assert claimed(store, job, left.number).terminal == 2


def test_which_indexes_are_finished(store: Store) -> None:
    job = ready_job(store)
    store.commit(claimed(store, job, 0), outcomes([3, 0]))
    store.commit(claimed(store, job, 1), outcomes([5]))
    assert store.done_indexes("job", range(8)) == [0, 3, 5]
    assert store.done_indexes("job", range(1, 5)) == [3]


def test_outcomes_come_in_order_from_where_one_asks(store: Store) -> None:
    job = ready_job(store)
    store.commit(claimed(store, job, 1), outcomes([7, 4, 5]))
    store.commit(claimed(store, job, 0), outcomes([2, 1]))
    assert [row.index for row in stored(store)] == [1, 2, 4, 5, 7]
    assert [[row.index for row in page] for page in store.outcomes("job", after=1, batch=2)] == [
        [2, 4],
        [5, 7],
    ]


def test_jobs_do_not_see_each_other(store: Store) -> None:
    for name in ("job", "other"):
        store.commit(claimed(store, ready_job(store, name)), outcomes([0], name))
    assert [row.response for row in stored(store)] == [b"job"]
    assert store.counts("other").done == 1
    idle = claimed(store, ready_job(store, "idle"))
    assert store.snapshot(idle).new_rows == 0  # of this attempt, whose shard and epoch the others have, too


def test_a_custom_id_that_stands_twice_is_found_at_the_end(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    store.commit(lease, [outcome(0), outcome(1)._replace(custom_id="id-0")])
    with pytest.raises(StoreFatalError, match="custom_id"):
        store.verify_counts("job")


def test_a_frame_of_all_outcomes(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    assert store.to_dataframe("job").empty
    answer = '{"choices":[{"message":{"content":"hello"}}]}'
    store.commit(lease, [outcome(0, answer), failure(1)])
    frame = store.to_dataframe("job")
    assert list(frame["custom_id"]) == ["id-0", "id-1"]
    assert frame["response"][0] == answer
    assert frame["text"][0] == "hello"
    assert frame["text"].isna().tolist() == [False, True]
    assert frame["response"].isna().tolist() == [False, True]
    assert frame["error_code"][1] == "context_length_exceeded"


def test_notices_are_kept_once(store: Store, clock: FakeClock) -> None:
    ready_job(store)
    for _ in range(2):
        told = StoredNotice(
            node="n1", source="aws", action="terminate", deadline=99.0, seen_at=0.0, event="e1"
        )
        store.record_notice("job", told)
    (notice,) = store.notices("job")
    assert (notice.node, notice.deadline, notice.seen_at) == ("n1", 99.0, clock.time)


def test_a_page_costs_the_same_at_the_start_and_at_the_end(store: Store) -> None:
    """Without statistics PostgreSQL would sort what is left for every page."""
    lease = claimed(store, ready_job(store, shards=1, rows=20_000))
    for first in range(0, 20_000, 2000):
        store.commit(lease, outcomes(range(first, first + 2000), "x" * 500))

    def seconds(after: int) -> float:
        started = time.perf_counter()
        assert len(next(store.outcomes("job", after=after, batch=200))) == 200
        return time.perf_counter() - started

    start, end = (min(seconds(after) for _ in range(5)) for after in (-1, 19_700))
    assert start < 4 * end


def test_parts_inherit_the_suspicion(store: Store) -> None:
    job = ready_job(store, shards=1)
    lease = claimed(store, job)
    store.release_shard(lease, cause="ENGINE_CRASH", suspect=True)
    parts = store.split_shard(claimed(store, job), [part(-1, 0, 2), part(-1, 2, 2)], cause="ENGINE_CRASH")
    assert [(shard.crashes, shard.interruptions) for shard in parts] == [(1, 0), (1, 0)]
