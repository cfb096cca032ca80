"""Contract: what losses are charged to."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.errors import FencedError
from dray.store import Charge, JobState, ReplicaRow, ReplicaState, Spending, Store, open_store
from tests.support.stores import FakeClock, claimed, failure, note_charges, outcomes, ready_job

pytestmark = pytest.mark.integration


def spent(
    store: Store, budget: str, *, scope: str = "", within: float | None = None, besides: str = ""
) -> int:
    [found] = store.spent("job", [Spending(budget=budget, scope=scope, within=within)], besides=besides)
    return found


def test_a_loss_is_charged_once_for_the_cause_noted_first(store: Store) -> None:
    job = ready_job(store)
    lost = Charge(budget="infra", event="node n1", cause="NODE_LOSS")
    for _ in range(2):  # for each replica that was there
        note_charges(
            store, "job", [lost, Charge(budget="node", scope="n1", event="node n1", cause="NODE_LOSS")]
        )
    note_charges(store, "job", [Charge(budget="model", event="node n1", cause="ENGINE_CRASH")])
    assert [(one.budget, one.scope) for one in store.charges("job")] == [("infra", ""), ("node", "n1")]
    assert {one.cause for one in store.charges("job")} == {"NODE_LOSS"}
    assert spent(store, "infra") == 1
    assert spent(store, "infra", besides="node n1") == 0
    assert store.overspent("job", "node", above=0) == ["n1"]
    assert store.overspent("job", "node", above=1) == []
    assert job.epoch == 1


def test_what_is_found_by_trying_does_not_add_up(store: Store) -> None:
    """Charges since the last answered row: error rows are no answers, for they may be the search's own."""
    lease = claimed(store, ready_job(store, shards=1, rows=4))
    for number in range(3):
        note_charges(store, "job", [Charge(budget="model", event=f"r{number}", cause="ENGINE_CRASH")])
    assert spent(store, "model", within=0.0) == 3
    store.commit(lease, [failure(0, "poison")])
    assert spent(store, "model", within=0.0) == 3
    store.commit(lease, outcomes([1]))
    assert spent(store, "model", within=0.0) == 0
    assert spent(store, "model") == 3


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(("answers", "renewals"), [(0, 0), (9, 0), (20, 2), (39, 3)])
def test_rows_that_engines_die_under_renew_budgets_while_they_are_few(
    store: Store, answers: int, renewals: int
) -> None:
    """Twenty bad rows side by side ended the job; a model that ends every engine is to end it still."""
    job = ready_job(store, shards=6, rows=40)
    store.commit(claimed(store, job), outcomes(range(answers)))
    found = 0
    for number in range(1, 6):
        note_charges(store, "job", [Charge(budget="model", event=f"r{number}", cause="POISON")])
        assert spent(store, "model", within=0.0) > 0
        for _ in range(2):
            store.release_shard(claimed(store, job, number), cause="ENGINE_CRASH", detail="", suspect=True)
        store.commit(claimed(store, job, number), [failure(number * 40, "poison")])
        found += spent(store, "model", within=0.0) == 0
    assert found == renewals


def test_other_error_rows_of_a_shard_renew_no_budget(store: Store) -> None:
    lease = claimed(store, ready_job(store, shards=1, rows=40))
    store.commit(lease, outcomes(range(20)))
    note_charges(store, "job", [Charge(budget="model", event="r", cause="ENGINE_CRASH")])
    store.commit(lease, [failure(30)])
    store.release_shard(lease, cause="ENGINE_CRASH", detail="", suspect=True)
    assert spent(store, "model", within=0.0) == 1


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_an_answer_counts_at_each_node_of_its_replica(store: Store, node: str) -> None:
    """The engine's part on the second one may be what died again and again."""
    job = ready_job(store, shards=1, rows=4)
    replica = ReplicaRow(
        name="job/1/replica-0", lane=0, state=ReplicaState.READY, slots=1, node="n1", others=("n2",)
    )
    store.put_replicas(job, [replica])
    lease = store.place_shard(job, 0, owner="w").lease
    assert lease is not None
    store.note_attempt(lease, node="n1")
    scope = f"{node} replica-0"
    note_charges(store, "job", [Charge(budget="replica", scope=scope, event="r", cause="ENGINE_CRASH")])
    assert spent(store, "replica", scope=scope, within=0.0) == 1
    store.commit(lease, outcomes([0]))
    assert spent(store, "replica", scope=scope, within=0.0) == 0
    assert store.overspent("job", "replica", above=0, within=0.0) == []
    other = Charge(budget="replica", scope="n3 replica-0", event="s", cause="ENGINE_CRASH")
    note_charges(store, "job", [other])
    assert store.overspent("job", "replica", above=0, within=0.0) == [other.scope]


def test_each_budget_and_scope_is_counted_by_itself(store: Store) -> None:
    ready_job(store)
    for budget, scope, event, cause in (
        ("infra", "", "a", "NODE_LOSS"),
        ("node", "n1", "a", "NODE_LOSS"),
        ("node", "n1", "b", "NODE_LOSS"),
        ("node", "n2", "c", "NODE_LOSS"),
        ("replica", "n3 replica-0", "d", "ENGINE_CRASH"),
        ("replica", "n3 replica-0", "e", "ENGINE_CRASH"),
    ):
        note_charges(store, "job", [Charge(budget=budget, scope=scope, event=event, cause=cause)])
    assert [spent(store, "node", scope=scope) for scope in ("n1", "n2", "n3")] == [2, 1, 0]
    assert (spent(store, "infra"), spent(store, "model")) == (1, 0)
    assert store.overspent("job", "node", above=1) == ["n1"]
    assert store.overspent("job", "replica", above=1) == ["n3 replica-0"]
    assert (store.losses("job", "NODE_LOSS"), store.losses("job", "ENGINE_CRASH")) == (3, 2)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("name", "is_its_own"),
    [
        ("replica-1", True),
        ("replica-1~2", True),
        ("job/1/replica-1", True),
        ("job/1/replica-1~2", True),
        ("job/1/replica-10", False),
        ("job/1/replica-11~2", False),
    ],
)
def test_a_lane_answers_by_whatever_replica_it_has(store: Store, name: str, is_its_own: bool) -> None:
    job = ready_job(store)
    note_charges(
        store, "job", [Charge(budget="replica", scope="n1 replica-1", event="r", cause="ENGINE_CRASH")]
    )
    lease = store.claim_shard(job, 0, owner="w", replica=name)
    assert lease is not None
    store.note_attempt(lease, node="n1")
    store.commit(lease, outcomes([0]))
    assert spent(store, "replica", scope="n1 replica-1", within=0.0) == (0 if is_its_own else 1)


def test_a_place_is_charged_by_its_own_answers(store: Store) -> None:
    """One bad GPU of several: its neighbours on the node answer, and it does not."""
    job = ready_job(store, shards=2, rows=4)
    for number in range(3):
        charge = Charge(budget="replica", scope="n1 replica-0", event=f"r{number}", cause="ENGINE_CRASH")
        note_charges(store, "job", [charge])
    neighbour = store.claim_shard(job, 0, owner="w", replica="job/1/replica-1")
    assert neighbour is not None
    store.note_attempt(neighbour, node="n1")
    store.commit(neighbour, outcomes([0]))
    assert spent(store, "replica", scope="n1 replica-0", within=0.0) == 3
    own = store.claim_shard(job, 1, owner="w", replica="job/1/replica-0~3")
    assert own is not None
    store.note_attempt(own, node="n1")
    assert store.overspent("job", "replica", above=2, within=0.0) == ["n1 replica-0"]
    store.commit(own, outcomes([4]))
    assert spent(store, "replica", scope="n1 replica-0", within=0.0) == 0


@pytest.mark.parametrize(
    ("state", "resume", "left"),
    [
        (JobState.FAILED, True, 0),
        (JobState.PAUSED, True, 0),
        (JobState.CANCELLED, True, 0),
        (JobState.FAILED, False, 1),  # a supervisor repeats the command
        (JobState.IN_PROGRESS, True, 1),  # its driver died
    ],
)
def test_a_job_at_rest_that_is_resumed_has_its_budgets_again(
    store: Store, clock: FakeClock, state: JobState, resume: bool, left: int
) -> None:
    job = ready_job(store)
    note_charges(store, "job", [Charge(budget="oom", event="r1", cause="OOM")])
    assert store.losses("job", "OOM") == 1
    assert store.losses("job", "OOM", besides="r1") == 0
    store.set_job_state(job, state)
    clock.pass_seconds(3600)  # the driver's lease lapses
    store.claim_job("job", "another", resume=resume)
    assert spent(store, "oom") == store.losses("job", "OOM") == left


def test_losses_are_forgotten_as_the_job_gets_on(store: Store) -> None:
    lease = claimed(store, ready_job(store, shards=1, rows=10))
    note_charges(store, "job", [Charge(budget="infra", event="first", cause="NODE_LOSS")])
    store.commit(lease, outcomes(range(5)))
    note_charges(store, "job", [Charge(budget="infra", event="second", cause="NODE_LOSS")])
    assert spent(store, "infra", within=0.5) == 2
    assert spent(store, "infra", within=0.4) == 1
    store.commit(lease, outcomes([5]))
    assert spent(store, "infra", within=0.5) == 1
    assert spent(store, "infra") == 2


def test_two_who_notice_a_loss_at_once_charge_it_once(store: Store, store_url: str) -> None:
    """As two shards of a replica that died: one was told of a lost node, the other of a closed line."""
    ready_job(store)
    who = [("infra", "NODE_LOSS"), ("model", "ENGINE_CRASH"), ("spot", "SPOT"), ("worker", "WORKER_LOST")]
    start = threading.Barrier(len(who))

    def charge(budget: str, cause: str) -> None:
        with open_store(store_url, create=False) as own:
            for number in range(50):
                start.wait()
                note_charges(own, "job", [Charge(budget=budget, event=f"replica-{number}", cause=cause)])

    with ThreadPoolExecutor(len(who)) as pool:
        for done in [pool.submit(charge, *one) for one in who]:
            done.result()
    charged = store.charges("job")
    assert len(charged) == len({one.event for one in charged}) == 50


def test_a_release_that_is_repeated_charges_once_and_one_that_is_too_late_nothing(store: Store) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    lost = Charge(budget="infra", event="r1", cause="NODE_LOSS")
    for _ in range(2):
        store.release_shard(lease, cause="NODE_LOSS", charged=[lost])
    assert store.charges("job") == [lost]
    claimed(store, job)
    with pytest.raises(FencedError):
        store.release_shard(lease, cause="NODE_LOSS", charged=[Charge(budget="infra", event="r2", cause="x")])
    assert store.charges("job") == [lost]


def test_a_shard_task_charges_only_while_it_has_its_lease(store: Store, clock: FakeClock) -> None:
    """A driver that stood still wakes up under its successor: it writes nothing any more."""
    job = ready_job(store, shards=1, rows=4)
    lease = claimed(store, job)
    lost = Charge(budget="rows", event="attempt 0/1", cause="ENGINE_CRASH")
    store.charge(lease, [lost])
    store.charge(lease, [lost])
    assert store.charges("job") == [lost]
    clock.pass_seconds(100_000)
    assert store.claim_job("job", owner="successor") is not None
    with pytest.raises(FencedError):
        store.charge(lease, [Charge(budget="rows", event="attempt 0/2", cause="ENGINE_CRASH")])
    assert store.charges("job") == [lost]
