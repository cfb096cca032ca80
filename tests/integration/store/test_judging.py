"""Contract: shards say what they saw of a lost replica, and its driver's verdict is charged with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dray.errors import FencedError, StoreFatalError
from dray.store import (
    Charge,
    Evidence,
    JobLease,
    JobState,
    ReplicaRow,
    ReplicaState,
    ShardLease,
    Store,
    Verdict,
    VerdictStatus,
    Witnesses,
    charges,
    judging,
    own_event,
)
from tests.integration.store.test_faults import lose_next_acknowledgement
from tests.support.stores import FakeClock, note_charges, ready_job

pytestmark = pytest.mark.integration

LOST = Evidence(sign="lost")
MEMORY = Evidence(sign="engine dead", oom=True, alone=True, proven=True)
VERDICT = Verdict(cause="OOM", event="replica r")
CHARGED = [
    Charge(budget=budget, event=VERDICT.event, cause=VERDICT.cause, scope=scope)
    for budget, scope in (("oom", ""), ("replica", "n r"))
]
OPEN, OVER = VerdictStatus(verdict=None, open=True), VerdictStatus(verdict=None, open=False)


def _ready(name: str) -> ReplicaRow:
    return ReplicaRow(name=name, lane=0, state=ReplicaState.READY, slots=2, node="n")


def _placed(store: Store, job: JobLease, number: int, replica: str = "r") -> ShardLease:
    store.put_replicas(job, [_ready(replica)])
    lease = store.claim_shard(job, number, owner=f"w{number}", replica=replica)
    assert lease is not None
    return lease


def test_each_shard_of_a_replica_is_heard(store: Store, clock: FakeClock) -> None:
    job = ready_job(store, shards=4)
    first, second, third = (_placed(store, job, number) for number in range(3))
    _placed(store, job, 3, replica="another")
    assert store.witnesses("job", "r") == Witnesses(silent=3)
    store.testify(second, MEMORY)
    store.testify(first, LOST)  # which erases nothing
    assert store.witnesses("job", "r") == Witnesses(said=(LOST, MEMORY), silent=1)
    assert [row.state for row in store.replicas("job") if row.name == "r"] == [ReplicaState.GONE]
    store.release_shard(first, cause="NODE_LOSS")  # it did not wait
    store.take_back(job, third.number, cause="NODE_LOSS")
    assert store.witnesses("job", "r") == Witnesses(said=(LOST, MEMORY))
    _placed(store, job, third.number, replica="another")
    clock.pass_seconds(second.ttl)
    assert store.witnesses("job", "r") == Witnesses(said=(LOST, MEMORY))
    assert store.witnesses("job", "another") == Witnesses()  # their leases have lapsed
    assert store.witnesses("job", "unknown") == Witnesses()


def test_a_verdict_is_heard_by_the_shards_and_stays(store: Store) -> None:
    job = ready_job(store)
    leases = [_placed(store, job, number) for number in range(2)]
    store.testify(leases[0], LOST)
    assert store.unjudged("job", {"r", "another"}) == {"r"}
    assert [store.verdict_status(lease) for lease in leases] == [OPEN, OPEN]
    lost = lose_next_acknowledgement(store)
    store.judge(job, "r", VERDICT, CHARGED)
    assert lost
    assert sorted(store.charges("job"), key=lambda one: one.budget) == CHARGED
    store.put_replicas(job, [_ready("r")])  # what the driver says of it elsewhere changes no verdict
    assert [store.verdict_status(lease).verdict for lease in leases] == [VERDICT, VERDICT]
    assert store.unjudged("job", {"r"}) == set()


@pytest.mark.parametrize("state", [ReplicaState.GONE, ReplicaState.RETIRED])
def test_a_driver_asks_for_verdicts_on_replicas_that_it_holds(store: Store, state: ReplicaState) -> None:
    """A long job ends thousands of its own accord: those have no verdict, and cost no look anything."""
    job = ready_job(store)
    ended = [replace(_ready(f"old-{number}"), state=state) for number in range(3)]
    store.put_replicas(job, [*ended, replace(_ready("r"), state=state), _ready("well")])
    assert store.unjudged("job", {"r", "well"}) == {"r"}
    assert store.unjudged("job", set()) == set()
    assert [row.name for row in store.replicas("job", ready_only=True)] == ["well"]


def test_a_verdict_and_its_charges_are_one_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ready_job(store)
    lease = _placed(store, job, 0)

    def broken(*_: object) -> None:
        raise StoreFatalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(judging, "_write_verdict", broken)
        with pytest.raises(StoreFatalError):
            store.judge(job, "r", VERDICT, CHARGED)
    assert (store.charges("job"), store.verdict_status(lease)) == ([], OPEN)
    with monkeypatch.context() as patch:
        patch.setattr(charges, "charge", broken)
        with pytest.raises(StoreFatalError):
            store.judge(job, "r", VERDICT, CHARGED)
    assert (store.charges("job"), store.verdict_status(lease)) == ([], OPEN)


def test_a_late_verdict_replaces_what_shards_charged(store: Store) -> None:
    job = ready_job(store, shards=3)
    lost = _placed(store, job, 0)
    store.testify(lost, LOST)
    other = _placed(store, job, 1, replica="another")
    for lease in (lost, other):
        own = Charge(budget="infra", event=own_event(lease.number, lease.epoch), cause="NODE_LOSS")
        store.release_shard(lease, cause="NODE_LOSS", charged=[own])
    store.judge(job, "another", Verdict(cause="SPOT", event="node n"), [])
    assert len(store.charges("job")) == 2  # a verdict that charges nothing replaces nothing
    store.judge(job, "r", VERDICT, CHARGED)
    events = sorted((one.budget, one.event) for one in store.charges("job"))
    assert events == [
        ("infra", own_event(other.number, other.epoch)),
        ("oom", VERDICT.event),
        ("replica", VERDICT.event),
    ]


def test_what_a_shard_charges_after_the_verdict_counts_no_more(store: Store) -> None:
    job = ready_job(store)
    leases = [_placed(store, job, number) for number in range(2)]
    for lease in leases:
        store.testify(lease, LOST)
    own = [
        Charge(budget="infra", event=own_event(lease.number, lease.epoch), cause="NODE_LOSS")
        for lease in leases
    ]
    store.judge(job, "r", VERDICT, CHARGED)
    store.release_shard(leases[0], cause="NODE_LOSS", charged=own[:1])
    note_charges(store, "job", own[1:])
    assert sorted(store.charges("job"), key=lambda one: one.budget) == CHARGED


def test_a_verdict_on_one_replica_leaves_what_others_charge(store: Store) -> None:
    """Another shard loses another replica, and the same shard loses one more."""
    job = ready_job(store)
    judged, other = _placed(store, job, 0), _placed(store, job, 1, replica="another")
    store.testify(judged, LOST)
    store.judge(job, "r", VERDICT, CHARGED)
    store.release_shard(judged, cause="OOM")
    again = _placed(store, job, 0, replica="third")
    for lease in (other, again):
        store.testify(lease, LOST)
        own = Charge(budget="infra", event=own_event(lease.number, lease.epoch), cause="NODE_LOSS")
        store.release_shard(lease, cause="NODE_LOSS", charged=[own])
        assert own in store.charges("job")
    store.judge(job, "third", Verdict(cause="SPOT", event="node n"), [])
    late = Charge(budget="oom", event="replica third", cause="OOM")
    store.judge(job, "third", Verdict(cause="OOM", event=late.event), [late])
    assert sorted(one.event for one in store.charges("job")) == sorted(
        [*(one.event for one in CHARGED), own_event(other.number, other.epoch), late.event]
    )


@pytest.mark.parametrize("judged", [False, True])
def test_a_verdict_of_one_job_leaves_what_others_charge(store: Store, judged: bool) -> None:
    """Their shards, attempts, replicas and events have the same names."""
    other, job = ready_job(store, "other"), ready_job(store)
    leases = [_placed(store, one, 0) for one in (other, job)]
    for lease in leases:
        store.testify(lease, LOST)
    store.judge(other, "r", VERDICT, CHARGED)
    if judged:  # and not charged
        store.judge(job, "r", VERDICT, [])
    own = Charge(budget="infra", event=own_event(0, leases[1].epoch), cause="NODE_LOSS")
    store.release_shard(leases[1], cause="NODE_LOSS", charged=[own])
    found = Charge(budget="infra", event=VERDICT.event, cause="SPOT")  # of another cause in the other job
    note_charges(store, "job", [found])
    assert {one.event for one in store.charges("job")} == {own.event, found.event}


def test_a_late_verdict_replaces_no_charge_of_a_shard_that_lost_its_replica_in_another_job(
    store: Store,
) -> None:
    other, job = ready_job(store, "other"), ready_job(store)
    store.testify(_placed(store, other, 1), LOST)
    lease = _placed(store, job, 1, replica="another")
    own = Charge(budget="infra", event=own_event(1, lease.epoch), cause="NODE_LOSS")
    store.release_shard(lease, cause="NODE_LOSS", charged=[own])
    store.put_replicas(job, [_ready("r")])
    store.judge(job, "r", VERDICT, CHARGED)
    assert own in store.charges("job")


@pytest.mark.parametrize("charged", [CHARGED, []])
def test_a_shards_own_trouble_is_charged_whatever_became_of_its_replica(
    store: Store, charged: list[Charge]
) -> None:
    job = ready_job(store)
    lease = _placed(store, job, 0)
    if not charged:  # of a node that is taken back the driver charges nothing
        store.testify(lease, LOST)
    store.judge(job, "r", VERDICT, charged)
    own = Charge(budget="store", event=own_event(lease.number, lease.epoch), cause="STORE_TRANSIENT")
    store.release_shard(lease, cause="STORE_TRANSIENT", charged=[own])
    assert own in store.charges("job")


def test_a_driver_that_was_replaced_judges_nothing(store: Store) -> None:
    old = ready_job(store)
    lease = _placed(store, old, 0)
    new = store.claim_job("job", "another", takeover=lambda owner: True)
    assert store.verdict_status(lease) == OVER  # the replicas end with their driver
    store.put_replicas(new, [_ready("r")])
    with pytest.raises(FencedError):
        store.judge(old, "r", VERDICT, CHARGED)
    assert store.charges("job") == []
    assert store.verdict_status(lease) == OVER  # the shard is not its own any more


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("why", ["released", "lapsed", "cancelled", "paused", "expired", "taken back"])
def test_no_verdict_is_waited_for_that_will_not_come(store: Store, clock: FakeClock, why: str) -> None:
    ready_job(store, "beside")  # whose driver lives
    job = ready_job(store)
    lease = _placed(store, job, 0)
    assert store.verdict_status(lease) == OPEN
    if why == "released":
        store.release_job(job)
    elif why == "lapsed":
        clock.pass_seconds(job.ttl)
    elif why == "cancelled":
        store.request_cancel("job")
    elif why == "paused":
        store.set_job_state(job, JobState.PAUSED)
    elif why == "expired":
        store.set_expiry(job, 0.0)
    else:
        store.take_back(job, lease.number, cause="NODE_LOSS")
    assert store.verdict_status(lease) == OVER
