"""What a lost replica died of, and what that is charged to: judged once, by the store's own budgets."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine, event

from dray.cluster.losses import NodeFacts
from dray.driver.events import Event, NodeLost, ReplicaLost
from dray.driver.replicas import losses as judged
from dray.driver.replicas.handle import Loss, ReplicaHandle
from dray.driver.replicas.losses import Losses, StoreBudgets
from dray.engine.protocol import EngineSpec
from dray.engine.ray_errors import import_error
from dray.errors import (
    EngineDeadError,
    EngineStartError,
    FencedError,
    ReplicaLostError,
    StoreTransientError,
)
from dray.failures.facts import NOTICE_SECONDS, Cause
from dray.failures.foreign import Sign
from dray.kinds import Kind
from dray.store import (
    Charge,
    Evidence,
    JobLease,
    ReplicaRow,
    ReplicaState,
    ShardLease,
    Store,
    StoredNotice,
    Verdict,
    open_store,
)
from tests.support.stores import FakeClock, note_charges, ready_job
from tests.unit.driver.scripted import ALIVE, BreakableStore, ScriptedProcess

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)
GONE = NodeFacts(alive=False, draining=False, preempted=False, oom=False)
UNKNOWN = NodeFacts(alive=None, draining=False, preempted=False, oom=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def job(store: Store) -> JobLease:
    return ready_job(store)


class Judged:
    """Losses of replicas, each in a lane of its own, all on one node."""

    def __init__(self, job: JobLease) -> None:
        self.events: list[Event] = []
        self.losses = Losses(job, self.events.append)

    def lose(
        self,
        lane: int,
        error: Exception,
        facts: NodeFacts,
        node: str | None = "n",
        *,
        hopeful: bool = False,
        at: float | None = None,
    ) -> ScriptedProcess:
        process = ScriptedProcess(name=f"p/replica-{lane}", spec=SPEC, avoid=frozenset(), place=node)
        process.facts = facts
        replica = ReplicaHandle(lane=lane, process=process, slots=2, node=node)
        at = time.monotonic() if at is None else at
        self.losses.add([Loss(replica=replica, error=error, hopeful=hopeful, at=at)])
        return process

    @property
    def lost(self) -> list[ReplicaLost]:
        return [event for event in self.events if isinstance(event, ReplicaLost)]

    @property
    def nodes(self) -> list[NodeLost]:
        return [event for event in self.events if isinstance(event, NodeLost)]


def test_where_no_node_can_import_dray_the_job_ends_with_the_advice(store: Store, job: JobLease) -> None:
    judging = Judged(job)
    error = import_error("node a", "ModuleNotFoundError: No module named 'dray'")
    why = "what the driver has (node a: ModuleNotFoundError: No module named 'dray')"
    advice = "give the nodes the driver's version of dray"
    judging.lose(0, error, ALIVE, hopeful=True)
    judging.losses.judge(store)
    told = f"replica-0 lost: ENGINE_CRASH: its node cannot import {why}; {advice}"
    assert judging.lost[0].text == told
    assert judging.losses.failure is None
    judging.lose(1, error, ALIVE)
    judging.losses.judge(store)
    told = f"ENGINE_CRASH: no node is left that can import {why}; {advice}, then resume the job"
    assert str(judging.losses.failure) == told
    assert not store.charges("job")


def test_a_node_that_went_is_told_of_once_with_the_replicas_that_were_on_it(
    store: Store, job: JobLease
) -> None:
    judging = Judged(job)
    judging.lose(0, ReplicaLostError("gone"), GONE)
    judging.lose(1, ReplicaLostError("gone"), GONE)
    judging.losses.judge(store)
    judging.losses.judge(store)
    assert [(one.name, one.node, one.cause) for one in judging.lost] == [
        ("p/replica-0", "n", Cause.NODE_LOSS),
        ("p/replica-1", "n", Cause.NODE_LOSS),
    ]
    assert judging.nodes == [NodeLost(node="n", replica="replica-0", cause="NODE_LOSS")]
    assert judging.lost[0].text.startswith("replica-0 lost: ")
    assert [(one.budget, one.event) for one in store.charges("job")] == [
        ("infra", "node n"),
        ("node", "node n"),
    ]


def test_a_loss_is_judged_when_the_cluster_has_settled_what_died(
    store: Store, job: JobLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = Judged(job)
    process = judging.lose(0, ReplicaLostError("gone"), UNKNOWN, node=None)
    judging.losses.judge(store)
    assert judging.lost == []
    process.facts, process.place = GONE, "the node"  # Ray says where it was to start only now
    judging.losses.judge(store)
    assert [(one.node, one.cause) for one in judging.lost] == [("the node", Cause.NODE_LOSS)]
    judging.lose(1, ReplicaLostError("gone"), UNKNOWN)
    monkeypatch.setattr(judged, "SETTLE_SECONDS", -1.0)  # it never says
    judging.losses.judge(store)
    assert len(judging.lost) == 2


def test_many_losses_at_once_are_judged_in_several_steps(
    store: Store, job: JobLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand take a minute, in which the driver would hear of no other node that goes."""
    judging = Judged(job)
    for lane in range(3):
        judging.lose(lane, ReplicaLostError("gone"), GONE, node=f"n{lane}")
    monkeypatch.setattr(judged, "STEP_SECONDS", -1.0)  # each takes longer
    for step in range(1, 4):
        judging.losses.judge(store)
        assert len(judging.lost) == step
    monkeypatch.undo()
    for lane in range(3, 6):
        judging.lose(lane, ReplicaLostError("gone"), GONE, node=f"n{lane}")
    judging.losses.judge(store)
    assert len(judging.lost) == 6


def test_a_loss_is_charged_once_the_store_is_back(store: Store, job: JobLease) -> None:
    judging = Judged(job)
    judging.lose(0, EngineStartError("CUDA", oom=True), ALIVE)
    broken = BreakableStore(store)
    with broken.away(StoreTransientError("away")), pytest.raises(StoreTransientError):
        judging.losses.judge(cast("Store", broken))
    assert judging.losses.undecided("replica-0")
    budgets = StoreBudgets(store, "job", judging.losses)
    assert (budgets.undecided("replica-0"), budgets.shrink_steps()) == (True, 0)
    judging.losses.judge(store)
    budgets = StoreBudgets(store, "job", judging.losses)  # in the driver's next step
    assert (budgets.undecided("replica-0"), budgets.shrink_steps()) == (False, 1)
    assert len(judging.lost) == 1


def test_a_notice_explains_a_loss_of_its_time_however_late_that_is_judged(tmp_path: Path) -> None:
    """The store was away meanwhile."""
    clock = FakeClock()
    with open_store(str(tmp_path / "late.db"), clock=clock) as store:
        judging = Judged(ready_job(store))
        store.record_notice(
            "job", StoredNotice(node="n", source="aws", action="stop", deadline=None, seen_at=0.0)
        )
        clock.pass_seconds(NOTICE_SECONDS + 100)
        judging.lose(0, ReplicaLostError("gone"), GONE, at=time.monotonic() - NOTICE_SECONDS)
        judging.losses.judge(store)
        assert [one.cause for one in judging.lost] == [Cause.SPOT]
        judging.lose(1, ReplicaLostError("gone"), GONE)
        judging.losses.judge(store)
        assert judging.lost[1].cause == Cause.NODE_LOSS


def _on_replica(store: Store, job: JobLease, number: int, lane: int = 0) -> ShardLease:
    """A shard on the replica of a lane, which the store knows of."""
    name = f"p/replica-{lane}"
    store.put_replicas(job, [ReplicaRow(name=name, lane=lane, state=ReplicaState.READY, slots=2, node="n")])
    lease = store.claim_shard(job, number, owner=f"task {number}", replica=name)
    assert lease is not None
    return lease


def test_two_shards_on_a_replica_hear_one_judgement_by_what_either_saw(store: Store, job: JobLease) -> None:
    """The engine tells those that fed it what it died of; to the driver its process was lost."""
    leases = [_on_replica(store, job, number) for number in (0, 1)]
    store.testify(leases[0], Evidence(sign=Sign.LOST))
    store.testify(leases[1], Evidence(sign=Sign.ENGINE_DEAD, oom=True))
    judging = Judged(job)
    judging.lose(0, ReplicaLostError("lost"), ALIVE)
    judging.losses.judge(store)
    assert [one.cause for one in judging.lost] == [Cause.OOM]
    [charge] = store.charges("job")
    assert (charge.budget, charge.event, charge.cause) == ("oom", "replica p/replica-0", "OOM")
    verdict = Verdict(cause="OOM", event="replica p/replica-0")
    assert [store.verdict_status(lease).verdict for lease in leases] == [verdict, verdict]


@pytest.mark.parametrize(
    ("seen", "cause", "budgets"),
    [
        (Evidence(sign=Sign.LOST), Cause.NODE_LOSS, {"infra", "node"}),
        (Evidence(sign=Sign.ENGINE_DEAD), Cause.ENGINE_CRASH, {"replica", "model"}),
        (Evidence(sign=Sign.LOST, stuck=True), Cause.ENGINE_CRASH, {"replica", "model"}),
        (Evidence(sign=Sign.LOST, preempted=True), Cause.SPOT, set()),
        (Evidence(sign=Sign.OOM), Cause.OOM, {"oom"}),
        (Evidence(sign=Sign.OOM, alone=True), Cause.OOM, {"replica", "oom"}),
        (Evidence(sign=Sign.OOM, alone=True, proven=True), Cause.OOM, {"replica", "model"}),
    ],
)
def test_what_a_shard_saw_decides_what_is_charged(
    seen: Evidence,
    cause: Cause,
    budgets: set[str],
    store: Store,
    job: JobLease,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cluster never settles whether the node lives."""
    monkeypatch.setattr(judged, "SETTLE_SECONDS", -1.0)
    store.testify(_on_replica(store, job, 0), seen)
    judging = Judged(job)
    judging.lose(0, ReplicaLostError("lost"), UNKNOWN)
    judging.losses.judge(store)
    assert [one.cause for one in judging.lost] == [cause]
    assert {one.budget for one in store.charges("job")} == budgets


def test_a_loss_is_judged_when_its_shards_have_said_what_they_saw(
    store: Store, job: JobLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (_on_replica(store, job, number) for number in (0, 1))
    judging = Judged(job)
    judging.lose(0, ReplicaLostError("lost"), ALIVE)
    judging.losses.judge(store)
    store.testify(first, Evidence(sign=Sign.LOST))
    judging.losses.judge(store)
    assert judging.lost == []
    assert judging.losses.undecided("replica-0")  # the successor may have to be smaller
    store.testify(second, Evidence(sign=Sign.LOST))
    judging.losses.judge(store)
    assert len(judging.lost) == 1
    assert not judging.losses.undecided("replica-0")
    store.release_shard(first, cause="ENGINE_CRASH")
    _on_replica(store, job, 0, lane=1)  # its task stands still
    judging.lose(1, ReplicaLostError("lost"), ALIVE)
    judging.losses.judge(store)
    assert len(judging.lost) == 1
    monkeypatch.setattr(judged, "EVIDENCE_SECONDS", -1.0)
    judging.losses.judge(store)
    assert len(judging.lost) == 2


def test_a_driver_that_was_replaced_judges_nothing(store: Store, job: JobLease) -> None:
    judging = Judged(job)
    judging.lose(0, ReplicaLostError("lost"), ALIVE)
    store.claim_job("job", "another", takeover=lambda owner: True)
    with pytest.raises(FencedError):
        judging.losses.judge(store)
    assert (store.charges("job"), judging.events) == ([], [])


def test_engines_that_die_on_one_node_again_and_again_are_kept_from_it_and_end_the_job(
    store: Store, job: JobLease
) -> None:
    judging = Judged(job)
    for number in range(100):
        process = judging.lose(0, EngineStartError("no"), ALIVE)
        process.name += f"~{number}"
        judging.losses.judge(store)
        if judging.losses.failure is not None:
            break
    assert judging.losses.failure is not None
    budgets = StoreBudgets(store, "job", judging.losses)
    assert budgets.excluded("replica-0") == {"n"}
    assert budgets.excluded("replica-1") == set()


class Statements:
    """What the store asks its database."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def note(self, connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        self.made.append((statement, parameters))


@pytest.fixture
def statements() -> Iterator[Statements]:
    found = Statements()
    event.listen(Engine, "before_cursor_execute", found.note)
    yield found
    event.remove(Engine, "before_cursor_execute", found.note)


def _scans(path: Path, statements: Statements, table: str) -> list[str]:
    """The questions for which the database would read all of a table's rows."""
    with closing(sqlite3.connect(path)) as database:
        return [
            statement
            for statement, values in statements.made
            if table in statement and statement.startswith("SELECT")
            for *_, step in database.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            if f"SCAN {table}" in step or step.endswith(f"{table} USING INDEX uq_{_FIRST} (job_key=?)")
        ]


_FIRST = "attempts_job_key_shard_epoch"  # its first column alone is no narrower than the table


def test_neither_a_judgement_nor_a_place_that_lost_something_reads_all_attempts(
    store: Store, job: JobLease, statements: Statements, tmp_path: Path
) -> None:
    """They did, each several times: the driver stood still for minutes when many replicas were lost."""
    judging = Judged(job)
    note_charges(store, "job", [_of_place(f"n{lane} replica-{lane}", 0) for lane in range(30)])
    note_charges(store, "job", [_of_place("n replica-0", times) for times in range(9)])
    statements.made.clear()
    budgets = StoreBudgets(store, "job", judging.losses)
    for lane in range(10):
        assert budgets.excluded(f"replica-{lane}") == ({"n"} if lane == 0 else set())
        assert budgets.shrink_steps() == 0
    assert len([one for one, _ in statements.made if "sum(attempts.done)" in one]) == 1
    judging.lose(1, ReplicaLostError("gone"), GONE, node="n1")
    judging.lose(2, EngineStartError("no"), ALIVE, node="n2")
    judging.losses.judge(store)
    assert len(judging.lost) == 2
    assert len([one for one, _ in statements.made if "sum(attempts.done)" in one]) > 1
    assert _scans(tmp_path / "store.db", statements, "attempts") == []


def _of_place(scope: str, number: int) -> Charge:
    return Charge(budget="replica", scope=scope, event=f"replica {scope} {number}", cause="ENGINE_CRASH")


@pytest.mark.heavy(one_of=3)
def test_starts_that_fail_while_others_may_do_charge_their_places_alone(
    store: Store, job: JobLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight places of one bad node, in a job whose other replicas load the model for minutes."""
    monkeypatch.setattr(judged, "STEP_SECONDS", 60.0)  # all at once, also on a busy machine
    judging = Judged(job)
    for start in range(10):
        for lane in range(8):
            process = judging.lose(lane, EngineStartError("no"), ALIVE, hopeful=True)
            process.name += f"~{start}"
        judging.losses.judge(store)
    assert len(judging.lost) == 80
    assert judging.losses.failure is None
    assert {one.budget for one in store.charges("job")} == {"replica"}
    budgets = StoreBudgets(store, "job", judging.losses)
    assert [budgets.excluded(f"replica-{lane}") for lane in (0, 7, 8)] == [{"n"}, {"n"}, set()]


def test_the_node_that_went_is_charged_and_not_the_replicas_own(store: Store, job: JobLease) -> None:
    """A replica on several nodes: one of the others went, and the engine said that it died."""
    judging = Judged(job)
    judging.lose(0, EngineDeadError("a part of it was lost"), replace(GONE, node="other"))
    judging.losses.judge(store)
    assert [(one.node, one.cause) for one in judging.lost] == [("other", Cause.NODE_LOSS)]
    assert judging.nodes == [NodeLost(node="other", replica="replica-0", cause="NODE_LOSS")]
    assert {charge.event for charge in store.charges("job")} == {"node other"}
