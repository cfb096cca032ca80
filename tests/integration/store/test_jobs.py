"""Contract: jobs and the driver's lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import event

from dray.errors import (
    CancelledError,
    FencedError,
    JobBusyError,
    JobChangedError,
    StoreFatalError,
    UnknownJobError,
)
from dray.requests.model import Outcome
from dray.requests.sharing import Follower
from dray.store import REJECTED, JobState, ShardState, StopSignals, Store, commit, open_store
from dray.store.lasting_info import LASTING
from tests.support.stores import FINGERPRINT, FakeClock, claimed, failure, outcome, outcomes, ready_job, specs

pytestmark = pytest.mark.integration


def test_a_new_job_is_validating(store: Store, clock: FakeClock) -> None:
    job = store.create_job("a", fingerprint=FINGERPRINT, settings={"temperature": 0, "stop": ["x"]})
    assert (job.state, job.total, job.epoch, job.created_at) == (JobState.VALIDATING, None, 0, clock.time)
    assert job.settings == {"temperature": 0, "stop": ["x"]}
    assert store.find_job("a") == store.get_job("a") == job


def test_creating_a_job_again_gives_the_same_job(store: Store) -> None:
    first = store.create_job("a", fingerprint=FINGERPRINT, settings={"n": 1})
    assert store.create_job("a", fingerprint=FINGERPRINT, settings={"n": 2}) == first


def test_a_changed_job_is_refused_and_the_change_named(store: Store) -> None:
    lease = ready_job(store, "a")
    store.release_job(lease)
    changed = replace(FINGERPRINT, input="other", sampling="other")
    with pytest.raises(JobChangedError, match=r"its input and its request fields \(.*\) changed"):
        store.create_job("a", fingerprint=changed, settings={})


def test_a_job_whose_input_was_never_taken_in_may_change(store: Store, clock: FakeClock) -> None:
    store.create_job("a", fingerprint=FINGERPRINT, settings={"n": 1})
    corrected = replace(FINGERPRINT, input="corrected")
    lease = store.claim_job("a", "one", ttl=60)
    with pytest.raises(JobChangedError, match="its input changed"):  # it is being taken in just now
        store.create_job("a", fingerprint=corrected, settings={})
    store.release_job(lease)
    job = store.create_job("a", fingerprint=corrected, settings={"n": 2})
    assert (job.fingerprint, job.settings) == (corrected, {"n": 2})
    assert store.create_job("a", fingerprint=corrected, settings={"n": 3}) == job


def test_a_claim_is_refused_where_another_command_gave_the_job_other_content(store: Store) -> None:
    """Two commands with one id at once: each would run its input under the fingerprint of the other."""
    store.create_job("a", fingerprint=FINGERPRINT, settings={"n": 1})
    corrected = replace(FINGERPRINT, input="corrected")
    store.create_job("a", fingerprint=corrected, settings={"n": 2})
    with pytest.raises(JobChangedError, match="another command gave job a other content: its input changed"):
        store.claim_job("a", "one", fingerprint=FINGERPRINT)
    assert store.get_job("a").driver is None
    store.claim_job("a", "two", fingerprint=corrected)
    with pytest.raises(JobChangedError):  # not that it is busy: to wait for its end is of no use
        store.claim_job("a", "one", fingerprint=FINGERPRINT)


def test_a_claim_is_refused_where_the_content_changes_after_its_look(store: Store, clock: FakeClock) -> None:
    store.create_job("a", fingerprint=FINGERPRINT, settings={})
    store.claim_job("a", "dead", ttl=60)
    clock.pass_seconds(60)
    corrected = replace(FINGERPRINT, input="corrected")

    def changed_meanwhile(_: str) -> bool:  # asked between the look at the job and the claim
        store.create_job("a", fingerprint=corrected, settings={})
        return True

    with pytest.raises(JobChangedError, match="its input changed"):
        store.claim_job("a", "one", fingerprint=FINGERPRINT, takeover=changed_meanwhile)
    assert (store.get_job("a").driver, store.get_job("a").fingerprint) == (None, corrected)


def test_a_job_with_other_content_keeps_what_lies_in_its_folders_alone(store: Store) -> None:
    store.create_job("a", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("a", "one")
    lasting = dict.fromkeys(LASTING, "kept")
    store.merge_job_info(lease, {**lasting, "weights_blake3": {"model": "1"}, "kinds": ["chat"]})
    store.set_job_summary(lease, {"report": "of the former content"})
    store.release_job(lease)
    before = store.get_job("a")
    assert store.create_job("a", fingerprint=FINGERPRINT, settings={}) == before
    found = store.create_job("a", fingerprint=replace(FINGERPRINT, model="other"), settings={})
    assert (found.info, found.summary) == (lasting, {})


def test_rejects_of_an_input_that_was_never_taken_in_are_forgotten(store: Store) -> None:
    """With the job's new input, or as with a query the same one: row 3 may be a good one by now."""
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("job", "one")

    def crash_after_one() -> object:
        yield [failure(3)]
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            store.add_shards(lease, specs(2, 4), total_rows=9, rejects=crash_after_one())  # type: ignore[arg-type]
    store.release_job(lease)
    store.create_job("job", fingerprint=replace(FINGERPRINT, input="corrected"), settings={})
    lease = store.claim_job("job", "two")
    store.add_shards(lease, specs(2, 4), total_rows=9, rejects=[[failure(8)]])
    counts = store.verify_counts("job")
    assert (counts.failed, counts.pending) == (1, 8)
    store.add_shards(lease, specs(2, 4), total_rows=9, rejects=[[failure(8)]])  # its answer was lost
    assert store.verify_counts("job") == counts


def test_who_wakes_up_in_a_job_that_became_another_is_fenced(store: Store, clock: FakeClock) -> None:
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    frozen = store.claim_job("job", "one", ttl=60)
    clock.pass_seconds(60)
    store.create_job("job", fingerprint=replace(FINGERPRINT, input="corrected"), settings={})
    with pytest.raises(FencedError):
        store.add_shards(frozen, specs(2, 4), total_rows=8)
    with pytest.raises(FencedError):
        store.renew_job(frozen)
    assert store.shards("job") == []


def test_a_driver_that_was_replaced_while_it_took_the_input_in_changes_no_rejects(store: Store) -> None:
    """Its row 3 may be a good one for its successor, and row 8 an error row that it never saw."""
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    old = store.claim_job("job", "one")

    def replaced_meanwhile() -> Iterator[list[Outcome]]:
        new = store.claim_job("job", "two", takeover=lambda owner: True)
        store._write(partial(commit.at_ingest, lease=new, shard=REJECTED, outcomes=[failure(8)]))
        yield [failure(3)]

    for rejects in (replaced_meanwhile(), [[failure(3)]]):
        with pytest.raises(FencedError):
            store.add_shards(old, specs(2, 4), total_rows=9, rejects=rejects)
        assert [row.index for page in store.outcomes("job") for row in page] == [8]


def test_an_ingest_that_is_begun_again_forgets_nothing_of_another_job(store: Store) -> None:
    store.create_job("other", fingerprint=FINGERPRINT, settings={})
    other = store.claim_job("other", "one")
    store._write(partial(commit.at_ingest, lease=other, shard=REJECTED, outcomes=[failure(3)]))
    ready_job(store, "job")
    assert [row.index for page in store.outcomes("other") for row in page] == [3]


def test_an_unknown_job_is_named(store: Store) -> None:
    assert store.find_job("nope") is None
    for ask in (store.get_job, store.counts, store.request_cancel, store.shards):
        with pytest.raises(UnknownJobError, match="nope"):
            ask("nope")


def test_jobs_are_listed_newest_first(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.create_job(name, fingerprint=FINGERPRINT, settings={})
    assert [job.job_id for job in store.list_jobs(limit=2)] == ["c", "b"]


def test_a_live_driver_keeps_others_out_until_its_lease_lapses(store: Store, clock: FakeClock) -> None:
    store.create_job("a", fingerprint=FINGERPRINT, settings={})
    first = store.claim_job("a", "one", ttl=60)
    assert store.get_job("a").driver_until == clock.time + 60
    clock.pass_seconds(59)
    with pytest.raises(JobBusyError, match="one"):
        store.claim_job("a", "two")
    clock.pass_seconds(1)
    second = store.claim_job("a", "two")
    assert second.epoch == first.epoch + 1
    with pytest.raises(FencedError):
        store.renew_job(first)


def test_renewing_keeps_the_job(store: Store, clock: FakeClock) -> None:
    lease = ready_job(store)
    clock.pass_seconds(50)
    store.renew_job(lease)
    clock.pass_seconds(50)
    with pytest.raises(JobBusyError):
        store.claim_job("job", "two")
    assert store.get_job("job").driver_until == clock.time + 10


def test_takeover_asks_about_the_old_owner(store: Store) -> None:
    lease = ready_job(store)
    asked: list[str] = []

    def lives(owner: str) -> bool:
        asked.append(owner)
        return False

    with pytest.raises(JobBusyError):
        store.claim_job("job", "two", takeover=lives)
    assert asked == ["driver"]
    assert store.claim_job("job", "two", takeover=lambda owner: True).epoch == lease.epoch + 1


def test_a_released_job_is_free_at_once(store: Store) -> None:
    lease = ready_job(store)
    store.release_job(lease)
    taken = store.claim_job("job", "two")
    store.release_job(lease)  # the old driver's second release must not free the new one's
    with pytest.raises(JobBusyError):
        store.claim_job("job", "three")
    assert store.get_job("job").driver == taken.owner


def test_a_new_driver_fences_the_old_ones_workers(store: Store) -> None:
    old = ready_job(store)
    zombie = claimed(store, old)
    store.commit(zombie, outcomes([0]))
    new = store.claim_job("job", "two", takeover=lambda owner: True)
    with pytest.raises(FencedError):
        store.commit(zombie, outcomes([1]))
    with pytest.raises(FencedError):
        store.claim_shard(old, 1, owner="worker")
    with pytest.raises(FencedError):
        store.set_job_state(old, JobState.FAILED)
    with pytest.raises(FencedError):
        store.move_shards(old, {"spool.jsonl": "elsewhere.jsonl"})
    assert {shard.uri for shard in store.shards("job")} == {"spool.jsonl"}
    assert store.done_indexes("job", range(8)) == [0]
    assert [shard.state for shard in store.shards("job")] == [ShardState.PENDING] * 2
    assert store.causes("job") == {"DRIVER_LOST": 1}
    assert claimed(store, new).epoch == zombie.epoch + 2


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED, JobState.PAUSED, JobState.EXPIRED])
def test_a_job_at_rest_goes_on_when_claimed(store: Store, state: JobState) -> None:
    lease = ready_job(store)
    store.request_cancel("job", for_good=False)
    store.set_job_state(lease, state, reason="because")
    assert store.get_job("job").reason == "because"
    store.release_job(lease)
    store.claim_job("job", "two")
    job = store.get_job("job")
    assert (job.state, job.cancel_requested, job.reason) == (JobState.IN_PROGRESS, False, None)


@pytest.mark.parametrize(
    "state", [JobState.CANCELLED, JobState.FAILED, JobState.PAUSED, JobState.IN_PROGRESS]
)
def test_a_cancelled_job_goes_on_by_an_explicit_word_only(
    store: Store, clock: FakeClock, state: JobState
) -> None:
    """A restart policy repeats the command by itself, also where the driver died before it heard."""
    lease = ready_job(store)
    store.request_cancel("job")
    clock.pass_seconds(30)
    store.request_cancel("job")  # the first one counts
    assert store.stop_signals("job").cancelled
    store.set_job_state(lease, state)
    clock.pass_seconds(60)  # the driver's lease lapses
    for _ in range(2):
        with pytest.raises(
            CancelledError, match=r"cancelled at 1970-01-12 13:46:40 UTC.*`dray resume job --store"
        ):
            store.claim_job("job", "two")
    store.release_job(lease)
    with pytest.raises(CancelledError):
        store.claim_job("job", "two")
    store.claim_job("job", "two", resume=True)
    job = store.get_job("job")
    assert (job.state, job.cancel_requested, job.cancelled_at) == (JobState.IN_PROGRESS, False, None)
    store.claim_job("job", "three", takeover=lambda _: True)  # the word holds for what comes after it


def test_a_run_that_asks_for_its_own_cancel_hits_no_other(store: Store) -> None:
    lease = ready_job(store)
    with pytest.raises(FencedError):
        store.request_cancel("job", by=replace(lease, owner="another"))
    store.release_job(lease)
    taken = store.claim_job("job", "two")
    for ask in (lease, replace(lease, owner="two")):
        with pytest.raises(FencedError):
            store.request_cancel("job", by=ask)
    job = store.get_job("job")
    assert (job.cancel_requested, job.cancelled_at) == (False, None)
    store.release_job(taken)
    store.request_cancel("job", by=taken)  # nobody has taken it since
    job = store.get_job("job")
    assert job.cancel_requested
    assert job.cancelled_at is not None


def test_a_cancelled_job_whose_driver_died_is_cancelled_and_not_busy(store: Store) -> None:
    ready_job(store)
    store.request_cancel("job")
    with pytest.raises(CancelledError):
        store.claim_job("job", "two", takeover=lambda _: True)


def test_a_driver_of_the_same_epoch_is_another_one(store: Store) -> None:
    """After a failover that lost the last transactions, a database gives an epoch a second time."""
    lease = ready_job(store)
    twin = replace(lease, owner="another")
    with pytest.raises(FencedError):
        store.claim_shard(twin, 0, owner="worker")
    with pytest.raises(FencedError):
        store.place_shard(twin, 0, owner="worker")
    assert store.claim_shard(lease, 0, owner="worker") is not None


def test_a_completed_job_stays_completed(store: Store) -> None:
    lease = ready_job(store)
    store.set_job_state(lease, JobState.COMPLETED)
    store.release_job(lease)
    store.request_cancel("job")
    assert not store.get_job("job").cancel_requested
    assert store.get_job("job").cancelled_at is None
    store.claim_job("job", "two")
    assert store.get_job("job").state is JobState.COMPLETED


def test_an_expired_job_without_open_shards_stays_expired(store: Store) -> None:
    ready_job(store, "beside")  # whose shards are open
    lease = ready_job(store)
    for number in range(2):
        shard = claimed(store, lease, number)
        store.commit(shard, [failure(index, "expired") for index in range(4 * number, 4 * number + 4)])
        store.finish_shard(shard)
    store.set_job_state(lease, JobState.EXPIRED, reason="late")
    store.release_job(lease)
    store.claim_job("job", "two")
    job = store.get_job("job")
    assert (job.state, job.reason) == (JobState.EXPIRED, "late")


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.PAUSED, JobState.CANCELLED])
def test_an_expired_job_that_fails_or_is_stopped_gets_the_reason_alone(store: Store, state: JobState) -> None:
    """Its driver could not write its files, for example: the next one finds it expired, not complete."""
    lease = ready_job(store)
    store.set_job_state(lease, JobState.EXPIRED)
    store.set_job_state(lease, state, reason="the output folder is full")
    job = store.get_job("job")
    assert (job.state, job.reason) == (JobState.EXPIRED, "the output folder is full")
    store.set_job_state(lease, JobState.EXPIRED)
    assert store.get_job("job").reason is None


def test_summary_is_replaced_and_info_merged(store: Store) -> None:
    lease = ready_job(store)
    store.set_job_summary(lease, {"a": 1})
    store.set_job_summary(lease, {"b": [2]})
    store.merge_job_info(lease, {"a": 1, "b": 1})
    store.merge_job_info(lease, {"b": {"c": None}})
    job = store.get_job("job")
    assert (job.summary, job.info) == ({"b": [2]}, {"a": 1, "b": {"c": None}})


def test_ingest_publishes_shards_rejects_and_total_together(store: Store) -> None:
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("job", "driver")
    rejects = [[failure(8, "invalid_json")], [failure(9, "invalid_json")]]
    store.add_shards(lease, specs(2, 4), total_rows=10, rejects=rejects)
    job = store.get_job("job")
    assert (job.state, job.total) == (JobState.IN_PROGRESS, 10)
    counts = store.verify_counts("job")
    assert (counts.total, counts.done, counts.failed, counts.pending) == (10, 0, 2, 8)


def test_ingest_may_be_repeated_after_a_crash_in_it(store: Store) -> None:
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("job", "driver")

    def crash_after_one() -> object:
        yield [failure(8)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add_shards(lease, specs(2, 4), total_rows=10, rejects=crash_after_one())  # type: ignore[arg-type]
    assert (store.shards("job"), store.counts("job").total) == ([], 0)
    for _ in range(2):
        store.add_shards(lease, specs(2, 4), total_rows=10, rejects=[[failure(8), failure(9)]])
    assert store.verify_counts("job").failed == 2
    with pytest.raises(StoreFatalError, match="other ones"):
        store.add_shards(lease, specs(4, 2), total_rows=10)


def test_the_end_of_ingest_counts_no_rows_by_a_statement(store: Store) -> None:
    """PostgreSQL ends a statement of a write after 30 s: counting 8 million rows took longer."""
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("job", "driver")
    said: list[str] = []

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement.lower())

    engine = store._database.engine
    event.listen(engine, "before_cursor_execute", hear)
    try:
        store.add_shards(
            lease,
            specs(1, 4),
            total_rows=10,
            rejects=[[failure(4)], [failure(5), failure(5)]],
            reused=[[outcome(6), outcome(7)]],
            followers=[[Follower(8, 0, "id-8")], [Follower(9, 0, "id-9")]],
        )
    finally:
        event.remove(engine, "before_cursor_execute", hear)
    assert [statement for statement in said if "count(" in statement] == []
    assert len(said) > 10
    store.commit(claimed(store, lease), outcomes(range(4)))
    assert store.answer_followers(lease).rows == 2
    counts = store.verify_counts("job")
    assert (counts.total, counts.done, counts.failed, counts.pending) == (10, 8, 2, 0)


def test_ingest_that_does_not_add_up_is_refused(store: Store) -> None:
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    lease = store.claim_job("job", "driver")
    with pytest.raises(StoreFatalError, match="9 rows read"):
        store.add_shards(lease, specs(2, 4), total_rows=9)
    assert store.get_job("job").total is None


def test_everything_is_there_after_opening_again(store: Store, store_url: str) -> None:
    lease = claimed(store, ready_job(store))
    store.commit(lease, outcomes([0, 1]))
    with open_store(store_url, create=False) as again:
        assert again.get_job("job") == store.get_job("job")
        assert again.done_indexes("job", range(8)) == [0, 1]


def test_a_jobs_time_runs_from_its_creation_by_the_databases_clock(store: Store, clock: FakeClock) -> None:
    job = ready_job(store)
    store.set_expiry(job, 100.0)
    assert not store.stop_signals("job").stop
    clock.pass_seconds(100)
    assert store.stop_signals("job") == StopSignals(cancelled=False, expired=True)
    store.set_expiry(job, None)
    assert not store.stop_signals("job").stop


def test_a_job_that_its_driver_gave_up_stops_until_it_is_resumed(store: Store) -> None:
    job = ready_job(store)
    store.set_job_state(job, JobState.PAUSED, reason="the disk is full")
    assert store.stop_signals("job") == StopSignals(cancelled=False, expired=False, at_rest=True)
    store.release_job(job)
    store.claim_job("job", "another")
    assert not store.stop_signals("job").stop
