"""A shard from its lease to its end: the real store, and the real replica in this process."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from dray.cluster.losses import NodeFacts
from dray.driver.replicas.handle import Loss, ReplicaHandle
from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.errors import EngineDeadError, ReplicaLeftError, ReplicaLostError, StoreTransientError
from dray.failures.causes import Decision
from dray.failures.effects import Budget, OnTask
from dray.failures.facts import Cause
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.kinds import Kind
from dray.requests.model import Outcome
from dray.requests.spool.spool import index_of
from dray.shard import ending, lease
from dray.shard import pump as shards
from dray.shard.attempt import attempt
from dray.shard.lease import ShardLeaseKeeper
from dray.shard.open_rows import Finished, OpenLines, Rows, open_lines
from dray.shard.pump import FEED_AHEAD
from dray.shard.work import AttemptEnd, AttemptResult, OpenWork, ShardReceipt
from dray.store import ReplicaRow, ReplicaState, Shard, ShardState, Store, StoredNotice, open_store
from tests.support.judging import Judging
from tests.support.waiting import until
from tests.unit.driver.scripted import ScriptedProcess

pytestmark = pytest.mark.unit

Make = Callable[..., JobSettings]
MAX_NUM_SEQS = 8


@pytest.fixture
def job(make_settings: Make) -> OpenJob:
    return open_job(make_settings())


@pytest.fixture
def store(job: OpenJob) -> Iterator[Store]:
    with open_store(job.settings.store_url, create=False) as opened:
        yield opened


@pytest.fixture
def shard(job: OpenJob) -> Shard:
    [only] = ingest_job(job, replicas=1)
    return only


@pytest.fixture
def make_replica() -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def make(**arguments: Any) -> Replica:
        settings = {"max_num_seqs": MAX_NUM_SEQS, **arguments}
        spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments=settings)
        replica = Replica(_name(len(started)), spec, exit_when_dead=False)
        replica.ready()
        started.append(replica)
        return replica

    yield make
    for replica in started:
        replica.stop()


def _name(generation: int) -> str:
    return "job/replica-0" + (f"~{generation}" if generation else "")


def test_the_first_row_of_a_shard_is_found_behind_rows_that_are_refused() -> None:
    refused = Outcome(index=0, custom_id="a", error_code="image_not_found", error_message="m")
    pieces = [OpenLines([], [1], [refused]), OpenLines([], [2], [refused]), OpenLines([b"line"], [3])]
    rows = Rows(iter(pieces))
    assert rows.first == b"line"
    assert [rows.take() for _ in pieces] == [(pieces[0], False), (pieces[1], False), (pieces[2], True)]
    assert Rows(iter([])).first is None
    assert Rows(iter([])).take() == (None, True)


class _Replicas:
    """One replica, in this process."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    def find(self, name: str) -> Any:
        assert name == self._replica.name
        return self._replica


class _Lost:
    """The driver hears of a replica, from its shard or from Ray, and is told merely that it was lost."""

    def __init__(self, job_id: str, name: str, *, alive: bool) -> None:
        self._job_id = job_id
        facts = NodeFacts(alive=alive, draining=False, preempted=False, oom=False)
        spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)
        process = ScriptedProcess(name=name, spec=spec, avoid=frozenset(), place="node-1", facts=facts)
        replica = ReplicaHandle(lane=0, process=process, slots=2, node="node-1")
        self._losses = [Loss(replica=replica, error=ReplicaLostError("lost"))]

    def __call__(self, store: Store) -> list[Loss]:
        gone = {row.name for row in store.replicas(self._job_id) if row.state is ReplicaState.GONE}
        found = [loss for loss in self._losses if loss.replica.name in gone]
        self._losses = [loss for loss in self._losses if loss not in found]
        return found


def _run(
    store: Store,
    job: OpenJob,
    shard: Shard,
    replica: Any,
    *,
    alive: bool = False,
    ttl: float = 90.0,
    slots: int = 2,
) -> AttemptResult:
    """An attempt beside a driver, to which the cluster says whether the replica's node is ``alive``."""
    work = _work(store, job, shard, replica, slots=slots, ttl=ttl)
    with Judging(job.settings.store_url, job.lease, _Lost(job.job_id, replica.name, alive=alive)):
        return attempt(work)


def _work(
    store: Store, job: OpenJob, shard: Shard, replica: Any, *, slots: int = 2, **settings: Any
) -> OpenWork:
    row = ReplicaRow(
        name=replica.name,
        lane=0,
        state=ReplicaState.READY,
        slots=slots,
        node="node-1",
        host="host-1",
        max_num_seqs=MAX_NUM_SEQS,
    )
    others = [replace(one, state=ReplicaState.GONE) for one in store.replicas(job.job_id)]
    store.put_replicas(job.lease, [*others, row])
    replicas = _Replicas(replica)
    return OpenWork(store=store, job=job.lease, shard=shard, replicas=replicas, owner="me", **settings)


def _receipt(ended: AttemptResult) -> ShardReceipt:
    assert ended.how is AttemptEnd.DONE, ended
    assert ended.receipt is not None
    return ended.receipt


def _early(ended: AttemptResult) -> Decision:
    assert ended.how is AttemptEnd.INTERRUPTED, ended
    assert ended.decision is not None
    return ended.decision


class Spy:
    """A replica seen through: what was fed and handed out, and a hook before each batch."""

    def __init__(self, replica: Replica, before: Callable[[int], None] = lambda count: None) -> None:
        self.name = replica.name
        self._replica = replica
        self._before = before
        self.fed = self.out = self.most = 0
        self.aborted: list[str] = []
        self.heard: set[str] = set()
        self.waits: list[float] = []

    def check(self) -> None:
        self._replica.check()

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        self.fed += len(lines)
        self.most = max(self.most, self.fed - self.out)
        self._replica.feed(session, lines, last)

    def results(self, session: str, rows: int, seconds: float) -> Iterator[list[Outcome]]:
        self.waits.append(seconds)
        for count, batch in enumerate(self._replica.results(session, rows, 0.01)):
            self.out += len(batch)
            self._before(count)
            yield batch

    def heartbeat(self, session: str) -> None:
        self.heard.add(session)

    def abort(self, session: str) -> None:
        self.aborted.append(session)
        self._replica.abort(session)


def test_every_row_is_committed_once_and_the_shard_ends(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    receipt = _receipt(_run(store, job, shard, make_replica()))
    assert (receipt.rows, receipt.skipped, receipt.replica) == (50, 0, "job/replica-0")
    assert store.verify_counts(job.job_id).done == 50
    assert [s.state for s in store.shards(job.job_id)] == [ShardState.DONE]
    assert _run(store, job, shard, make_replica()).how is AttemptEnd.HELD  # nothing left to take


def test_a_finished_row_waits_for_its_commit_as_long_as_the_driver_says(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    spy = Spy(make_replica())
    attempt(_work(store, job, shard, spy, commit_seconds=4.0))
    assert spy.waits == [4.0]


def test_a_replica_hears_that_its_shard_task_lives_while_no_row_is_ready(
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dray.shard.lease.HEARTBEAT_SECONDS", 0.02)
    spy = Spy(make_replica(), before=lambda count: until(lambda: bool(spy.heard)))
    assert _receipt(_run(store, job, shard, spy)).rows == 50
    assert spy.heard == {f"{job.job_id}/{shard.number}/1"}


def test_a_task_whose_replica_gave_it_up_gives_its_shard_back(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    """It was frozen for a minute, and goes on: the replica lives, and is not taken for lost."""
    replica = make_replica()

    def give_up(count: int) -> None:
        replica._loop.abort(f"{job.job_id}/{shard.number}/1", silent=True)

    decision = _early(_run(store, job, shard, Spy(replica, give_up)))
    assert (decision.cause, decision.effect.charges) == (Cause.STORE_TRANSIENT, ())
    assert [row.state for row in store.replicas(job.job_id)] == [ReplicaState.READY]
    receipt = _receipt(_run(store, job, shard, replica))
    assert receipt.rows + receipt.skipped == 50
    assert receipt.rows > 0


def test_signals_that_came_with_a_commit_are_not_asked_for(
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "LOOK_EVERY", 2.0)
    asked: list[float] = []
    signals = type(store).stop_signals

    def ask(self: Store, job_id: str) -> Any:
        asked.append(time.monotonic())
        return signals(self, job_id)

    monkeypatch.setattr(type(store), "stop_signals", ask)
    held = store.claim_shard(job.lease, shard.number, owner="me")
    assert held is not None
    with ShardLeaseKeeper(store, held, on_stop=lambda: None, say=lambda: None) as holder:
        end = time.monotonic() + 4.0
        while time.monotonic() < end:  # as a shard that commits all the time
            holder.obey(signals(store, job.job_id))
            time.sleep(0.05)
        assert not asked
        until(lambda: bool(asked))  # it is quiet now


def test_rows_that_are_terminal_are_not_fed_again(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    lease = store.claim_shard(job.lease, shard.number, owner="earlier")
    assert lease is not None
    store.commit(lease, [Outcome(index, f"row-{index}", b"{}") for index in range(0, 50, 2)])
    store.release_shard(lease, cause="SPOT")
    spy = Spy(make_replica())
    receipt = _receipt(_run(store, job, shard, spy))
    assert (receipt.rows, receipt.skipped, spy.fed) == (25, 25, 25)
    assert store.verify_counts(job.job_id).done == 50


def test_a_shard_with_no_row_left_only_ends(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    lease = store.claim_shard(job.lease, shard.number, owner="earlier")
    assert lease is not None
    store.commit(lease, [Outcome(index, f"row-{index}", b"{}") for index in range(50)])
    store.release_shard(lease, cause="SPOT")  # killed between its last commit and its end
    receipt = _receipt(_run(store, job, shard, make_replica()))
    assert (receipt.rows, receipt.skipped) == (0, 50)
    assert [s.state for s in store.shards(job.job_id)] == [ShardState.DONE]


def test_what_is_in_flight_is_bounded(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    spy = Spy(make_replica(seconds_per_token=0.005))
    _run(store, job, shard, spy)
    assert spy.fed == 50
    assert MAX_NUM_SEQS <= spy.most < (FEED_AHEAD + 1) * MAX_NUM_SEQS < 50


def test_a_cancel_ends_it_keeps_what_is_committed_and_frees_the_shard(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    spy = Spy(
        make_replica(seconds_per_token=0.05), lambda n: store.request_cancel(job.job_id) if n == 1 else None
    )
    assert _run(store, job, shard, spy).how is AttemptEnd.STOPPED
    [after] = store.shards(job.job_id)
    assert (after.state, after.owner) == (ShardState.PENDING, None)
    assert 0 < store.verify_counts(job.job_id).done < 50
    assert [attempt.cause for attempt in store.attempts(job.job_id)] == ["CANCEL"]
    assert spy.aborted


def test_a_cancel_is_seen_while_nothing_comes_back(
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "LOOK_EVERY", 0.05)
    replica = make_replica(stall_on="prompt")
    threading.Timer(0.3, lambda: store.request_cancel(job.job_id)).start()
    began = time.monotonic()
    assert _run(store, job, shard, replica).how is AttemptEnd.STOPPED
    assert time.monotonic() - began < 5


def test_a_lost_lease_drops_the_work(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    def take_over(count: int) -> None:
        if count == 1:  # a second driver, after this one was taken for dead
            store.claim_job(job.job_id, "another", takeover=lambda _: True)

    spy = Spy(make_replica(seconds_per_token=0.02), take_over)
    decision = _early(_run(store, job, shard, spy))
    assert (decision.cause, decision.effect.task) == (Cause.FENCED, OnTask.SUPERSEDED)
    done = store.verify_counts(job.job_id).done
    assert 0 < done < 50
    assert spy.aborted  # the engine stops working for nobody
    time.sleep(0.3)
    assert store.verify_counts(job.job_id).done == done


def test_the_holder_stops_by_its_own_clock_before_its_lease_ends(
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is away and nothing comes back: the holder gives up while the lease is still its own."""
    monkeypatch.setattr(lease, "STOP_BEFORE_EXPIRY", 2.2)
    monkeypatch.setattr(lease, "LOOK_EVERY", 0.05)

    def away(*_: object) -> bool:
        raise StoreTransientError("away")

    replica = make_replica(stall_on="prompt")
    feed = replica.feed

    def fed(*values: Any) -> None:  # the shard has its place by then
        feed(*values)
        monkeypatch.setattr(store, "stop_signals", away)

    monkeypatch.setattr(replica, "feed", fed)
    began = time.monotonic()
    decision = _early(_run(store, job, shard, replica, ttl=3.0))
    assert 0.5 < time.monotonic() - began < 3.0
    assert (decision.cause, decision.effect.task) == (
        Cause.STORE_TRANSIENT,
        OnTask.RETRY,
    )  # and not superseded


def test_a_quiet_shard_keeps_its_lease(
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that take longer than the lease: renewals keep it."""
    monkeypatch.setattr(lease, "STOP_BEFORE_EXPIRY", 0.2)
    monkeypatch.setattr(lease, "RENEW_EVERY", 0.2)
    monkeypatch.setattr(lease, "LOOK_EVERY", 0.05)
    replica = make_replica(max_num_seqs=64, seconds_per_token=0.5)  # 2 s a row
    assert _receipt(_run(store, job, shard, replica, ttl=1.0)).rows == 50


def test_a_lost_replica_gives_the_shard_back(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    def lose(count: int) -> None:
        if count == 1:
            raise ReplicaLostError("gone")

    lost = Spy(make_replica(seconds_per_token=0.01), lose)
    decision = _early(_run(store, job, shard, lost))
    assert (decision.cause, decision.effect.task) == (Cause.NODE_LOSS, OnTask.RETRY)
    assert {(one.budget, one.scope) for one in store.charges(job.job_id)} == {
        ("infra", ""),
        ("node", "node-1"),
    }
    assert [row.state for row in store.replicas(job.job_id)] == [ReplicaState.GONE]  # no shard goes there
    [after] = store.shards(job.job_id)
    assert (after.state, after.interruptions) == (ShardState.PENDING, 1)
    assert [attempt.cause for attempt in store.attempts(job.job_id)] == ["NODE_LOSS"]
    receipt = _receipt(_run(store, job, shard, make_replica()))
    assert receipt.rows + receipt.skipped == 50
    assert store.verify_counts(job.job_id).done == 50


def test_a_drained_replica_keeps_what_is_done_and_charges_nothing(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    replica = make_replica(seconds_per_token=0.05)
    spy = Spy(replica, lambda count: replica.drain(5.0) if count == 0 else None)
    decision = _early(_run(store, job, shard, spy, alive=True))
    assert (decision.cause, decision.effect.task) == (Cause.SPOT, OnTask.RETRY)
    assert store.charges(job.job_id) == []
    done = store.verify_counts(job.job_id).done
    assert MAX_NUM_SEQS <= done < 50  # what was in flight has come out
    with pytest.raises(ReplicaLeftError):
        replica.check()


@pytest.mark.heavy(one_of=3)
def test_a_shard_under_which_engines_die_is_cut_down_to_the_row(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    """The row at fault gets an error row, all others their answers, and each crash is charged."""
    crashes = 0
    for _ in range(40):
        open_shards = [one for one in store.shards(job.job_id) if one.state is ShardState.PENDING]
        if not open_shards:
            break
        one = max(open_shards, key=lambda one: one.crashes)  # a suspect's replica takes nobody else
        replica = make_replica(oom_on="prompt 17")  # the engine dies as soon as it runs this row
        ended = _run(store, job, one, _Crash(replica), alive=True)
        crashes += ended.how is AttemptEnd.INTERRUPTED
    counts = store.verify_counts(job.job_id)
    assert (counts.done, counts.failed) == (49, 1)
    [bad] = [row for page in store.outcomes(job.job_id) for row in page if row.error_code]
    assert (bad.custom_id, bad.error_code) == ("row-17", "poison")
    assert crashes <= 6 + 3  # log2(50), one before it and two to be sure
    assert {one.budget for one in store.charges(job.job_id)} == {"model", "replica"}


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(("reader", "cause"), [("parts_of", "ENGINE_CRASH"), ("open_lines", "POISON")])
def test_a_shard_whose_requests_cannot_be_read_just_now_is_given_back(
    reader: str,
    cause: str,
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The object store is out of reach as the shard is to be split, or its one row to be refused."""
    plain = getattr(ending, reader)
    failures = 0

    def read(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise OSError("s3://bucket/requests.jsonl: busy")
        return plain(*arguments, **options)

    monkeypatch.setattr(ending, reader, read)
    put_off = 0
    while found := [one for one in store.shards(job.job_id) if one.state is ShardState.PENDING]:
        one = max(found, key=lambda one: one.crashes)  # a suspect's replica takes nobody else
        ended = _run(store, job, one, _Crash(make_replica(oom_on="prompt 17")), alive=True)
        if ended.decision is not None and "cannot be read just now (OSError)" in ended.decision.reason:
            put_off += 1
            [after] = [now for now in store.shards(job.job_id) if now.number == one.number]
            assert (ended.how, ended.decision.effect.task) == (AttemptEnd.INTERRUPTED, OnTask.RETRY)
            assert (after.state, after.owner, after.crashes) == (ShardState.PENDING, None, one.crashes)
            last = store.attempts(job.job_id)[-1]
            assert (last.cause, last.detail) == (cause, ended.decision.reason)
            assert {charge.budget for charge in store.charges(job.job_id)} == {"model", "replica"}
    assert put_off == 2
    counts = store.verify_counts(job.job_id)
    assert (counts.done, counts.failed, counts.pending) == (49, 1, 0)


def _lose(count: int) -> None:
    raise ReplicaLostError("gone")


def test_a_loss_that_no_driver_judges_is_the_shards_own_after_a_while(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    """The driver stands still, or finds the replica alive: a loop of such losses is to have an end."""
    for number in (1, 2):
        began = time.monotonic()
        decision = _early(attempt(_work(store, job, shard, Spy(make_replica(), _lose), verdict_seconds=0.3)))
        assert 0.3 < time.monotonic() - began < 10.0
        assert (decision.cause, decision.effect.task) == (Cause.NODE_LOSS, OnTask.RETRY)
        assert [one.state for one in store.shards(job.job_id)] == [ShardState.PENDING]
        events = [one.event for one in store.charges(job.job_id) if one.budget == "infra"]
        assert events == [f"{shard.number}/{epoch}" for epoch in range(1, number + 1)]
        assert {one.scope for one in store.charges(job.job_id) if one.budget == "node"} == {"node-1"}


@pytest.mark.parametrize("why", ["given back", "lapsed", "cleared", "cancelled", "fenced", "announced"])
def test_a_shard_does_not_wait_for_a_verdict_that_will_not_come(
    why: str, store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    def lose(count: int) -> None:
        if why == "given back":
            store.release_job(job.lease)
        elif why == "lapsed":
            store.renew_job(replace(job.lease, ttl=0.0))
        elif why == "cleared":
            store.claim_job(job.job_id, "another", takeover=lambda _: True)
        elif why == "cancelled":
            store.request_cancel(job.job_id)
        elif why == "fenced":
            store.take_back(job.lease, shard.number, cause="NODE_LOSS")
            assert store.claim_shard(job.lease, shard.number, owner="another") is not None
        else:
            told = StoredNotice(node="node-1", source="aws", action="terminate", deadline=None, seen_at=0.0)
            store.record_notice(job.job_id, told)
        raise ReplicaLostError("gone")

    began = time.monotonic()
    ended = attempt(_work(store, job, shard, Spy(make_replica(), lose), verdict_seconds=60.0))
    assert time.monotonic() - began < 30.0
    assert ended.decision is not None
    assert ended.decision.cause == {"cancelled": Cause.CANCEL, "announced": Cause.SPOT}.get(
        why, Cause.NODE_LOSS
    )
    charged = why in ("given back", "lapsed")  # with the others the lease went, or a user or a cloud did it
    assert bool(store.charges(job.job_id)) == charged


def test_a_lack_of_memory_that_the_engine_told_its_shard_alone_is_charged_once(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    """To the driver the replica was merely lost, and its process died on a node that lives."""
    decision = _early(_run(store, job, shard, make_replica(oom_on="prompt 17"), alive=True))
    assert (decision.cause, decision.effect.charges) == (Cause.OOM, (Budget.OOM,))
    [charge] = store.charges(job.job_id)
    assert (charge.budget, charge.event, charge.cause) == ("oom", "replica job/replica-0", "OOM")


class _Crash(Spy):
    """An engine that dies of memory, seen as one that dies of anything."""

    def results(self, session: str, rows: int, seconds: float = 0.01) -> Iterator[list[Outcome]]:
        try:
            yield from super().results(session, rows, seconds)
        except EngineDeadError:
            raise EngineDeadError("dead") from None


def test_a_value_that_the_database_does_not_take_costs_its_row_only(
    store: Store, job: OpenJob, shard: Shard, make_replica: Callable[..., Replica]
) -> None:
    """SQLite built, or set, to take less than an engine gives; here 1 MB."""

    class Big(Spy):
        def results(self, session: str, rows: int, seconds: float = 0.01) -> Iterator[list[Outcome]]:
            for batch in super().results(session, rows, seconds):
                yield [
                    o._replace(response=b'"' + b"a" * 10**6 + b'"') if o.index in (7, 8) else o for o in batch
                ]

    engine = store._database.engine
    event.listen(engine, "connect", lambda raw, _: raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10**6))
    engine.dispose()
    receipt = _receipt(_run(store, job, shard, Big(make_replica(max_num_seqs=64))))
    assert receipt.rows == 50
    failed = [row for page in store.outcomes(job.job_id) for row in page if row.error_code]
    assert [(row.custom_id, row.error_code) for row in failed] == [
        ("row-7", "response_too_large"),
        ("row-8", "response_too_large"),
    ]
    assert store.verify_counts(job.job_id).done == 48


@pytest.mark.parametrize(("feed_bytes", "slots"), [(500, 2), (1000, 4)])
def test_the_feed_window_is_bounded_by_bytes_too(
    store: Store,
    job: OpenJob,
    shard: Shard,
    make_replica: Callable[..., Replica],
    monkeypatch: pytest.MonkeyPatch,
    feed_bytes: int,
    slots: int,
) -> None:
    """Lines of 100 bytes and more, and a window of 500: what waits in a replica is that and one chunk."""
    monkeypatch.setattr(shards, "FEED_BYTES", feed_bytes)
    replica, most = make_replica(max_num_seqs=2), 0
    sizes: dict[int, int] = {}
    feed, results = replica.feed, replica.results

    def counted(session: str, lines: list[bytes], last: bool = False, number: int | None = None) -> None:
        nonlocal most
        sizes.update((index_of(line), len(line)) for line in lines)
        most = max(most, sum(sizes.values()))
        feed(session, lines, last, number)

    def read(session: str, rows: int, seconds: float = 0.01) -> Iterator[list[Outcome]]:
        for batch in results(session, rows, seconds):
            for outcome in batch:
                del sizes[outcome.index]
            yield batch

    monkeypatch.setattr(replica, "feed", counted)
    monkeypatch.setattr(replica, "results", read)
    assert _receipt(_run(store, job, shard, replica, slots=slots)).rows == 50
    assert 400 < most < 500 + MAX_NUM_SEQS * 200 < 2.5 * MAX_NUM_SEQS * 120


def test_rows_come_in_chunks_and_the_last_is_known(shard: Shard) -> None:
    rows = Rows(_open(shard, range(40, 50), chunk_rows=20))
    chunks = []
    last = False
    while not last:
        chunk, last = rows.take()
        assert chunk is not None
        chunks.append((len(chunk.lines), chunk.end))
    assert chunks == [(20, 20), (20, 40)]
    nothing = Rows(_open(shard, range(50)))
    assert nothing.take() == (None, True)


def _open(shard: Shard, done: range, *, chunk_rows: int = 128) -> Iterator[OpenLines]:
    return open_lines(shard, Finished(frozenset(done).intersection, len(done)), chunk_rows=chunk_rows)


def test_the_spool_lies_where_the_shard_says(shard: Shard, job: OpenJob) -> None:
    assert Path(shard.uri) == Path(job.spool(1))
