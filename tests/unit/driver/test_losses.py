"""What a lost replica died of, and what that is charged to: judged once, by the store's own budgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from dray.cluster.losses import NodeFacts
from dray.driver import losses as judged
from dray.driver.events import Event, NodeLost, ReplicaLost
from dray.driver.losses import Losses, StoreBudgets
from dray.driver.pool import Loss
from dray.driver.replica_handle import ReplicaHandle
from dray.engine.protocol import EngineSpec
from dray.errors import EngineDeadError, EngineStartError, ReplicaLostError, StoreTransientError
from dray.failures.facts import Cause
from dray.requests import Kind
from dray.store import Store, open_store
from tests.support.stores import ready_job
from tests.unit.driver.scripted import ALIVE, BreakableStore, ScriptedProcess

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)
GONE = NodeFacts(alive=False, draining=False, preempted=False, oom=False)
UNKNOWN = NodeFacts(alive=None, draining=False, preempted=False, oom=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        ready_job(opened)
        yield opened


class Judged:
    """Losses of replicas, each in a lane of its own, all on one node."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.losses = Losses("job", self.events.append)

    def lose(self, lane: int, error: Exception, facts: NodeFacts, node: str | None = "n") -> ScriptedProcess:
        process = ScriptedProcess(name=f"p/replica-{lane}", spec=SPEC, avoid=frozenset(), place=node)
        process.facts = facts
        replica = ReplicaHandle(lane=lane, process=process, slots=2, node=node)
        self.losses.add([Loss(replica=replica, error=error)])
        return process

    @property
    def lost(self) -> list[ReplicaLost]:
        return [event for event in self.events if isinstance(event, ReplicaLost)]

    @property
    def nodes(self) -> list[NodeLost]:
        return [event for event in self.events if isinstance(event, NodeLost)]


def test_a_node_that_went_is_told_of_once_with_the_replicas_that_were_on_it(store: Store) -> None:
    judging = Judged()
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


def test_a_loss_is_judged_when_the_cluster_has_settled_what_died(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = Judged()
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


def test_a_loss_is_charged_once_the_store_is_back(store: Store) -> None:
    judging = Judged()
    judging.lose(0, EngineStartError("CUDA", oom=True), ALIVE)
    broken = BreakableStore(store)
    with broken.away(StoreTransientError("away")), pytest.raises(StoreTransientError):
        judging.losses.judge(cast("Store", broken))
    assert judging.losses.undecided("replica-0")
    budgets = StoreBudgets(store, "job", judging.losses)
    assert (budgets.undecided("replica-0"), budgets.shrink_steps()) == (True, 0)
    judging.losses.judge(store)
    assert (budgets.undecided("replica-0"), budgets.shrink_steps()) == (False, 1)
    assert len(judging.lost) == 1


def test_what_a_shard_has_charged_is_not_charged_again(store: Store) -> None:
    first = Judged()
    first.lose(0, EngineDeadError("died"), ALIVE)
    first.losses.judge(store)
    before = store.charges("job")
    second = Judged()
    second.lose(0, ReplicaLostError("gone"), ALIVE)  # the same replica, found dead by another
    second.losses.judge(store)
    assert store.charges("job") == before
    assert [one.cause for one in second.lost] == [one.cause for one in first.lost]


def test_engines_that_die_on_one_node_again_and_again_are_kept_from_it_and_end_the_job(store: Store) -> None:
    judging = Judged()
    budgets = StoreBudgets(store, "job", judging.losses)
    for number in range(100):
        process = judging.lose(0, EngineStartError("no"), ALIVE)
        process.name += f"~{number}"
        judging.losses.judge(store)
        if judging.losses.failure is not None:
            break
    assert judging.losses.failure is not None
    assert budgets.excluded("replica-0") == {"n"}
    assert budgets.excluded("replica-1") == set()
