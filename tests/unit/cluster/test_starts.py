"""What the pool makes of starts that fail: which one ends the job, and which is a loss like any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster import pool as pools
from dray.cluster.base import ClusterInfo, Node
from dray.cluster.losses import NodeFacts
from dray.cluster.member import MemberState, ReplicaHandle
from dray.cluster.pool import Loss, ReplicaPool
from dray.engine.protocol import EngineSpec
from dray.errors import (
    ConfigError,
    DrayError,
    EngineDeadError,
    EngineStartError,
    ReplicaLostError,
    WeightsError,
)
from dray.requests import Kind

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)


class FakeMember:
    """A member whose polls a test decides: each is an error, or whether it is ready."""

    def __init__(self, name: str, lane: int, spec: EngineSpec, script: list[Any]) -> None:
        self.name, self.lane, self.spec = name, lane, spec
        self.state = MemberState.STARTING
        self.node: str | None = None
        self.start: object = None
        self.max_num_seqs = 8
        self.began = time.time()
        self.replica = SimpleNamespace(actor_id=name)
        self.overdue = False
        self.note: str | None = None
        self.asked = time.monotonic()
        self._script = script

    def poll(self) -> bool:
        found = self._script.pop(0) if self._script else False
        if isinstance(found, Exception):
            raise found
        if found:
            self.state, self.start = MemberState.READY, SimpleNamespace(name=self.name)
        return bool(found)

    def has_place(self) -> bool:
        return True

    def is_overdue(self, seconds: float) -> bool:
        return self.overdue

    def kill(self) -> None:
        self.state = MemberState.GONE


class Ledger:
    """Keeps the losses; says how often memory lacked only once it was told, which takes a moment."""

    failure = None

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.steps = 0
        self.spent: dict[str, set[str]] = {}  # nodes, by lane

    def publish(self, members: Sequence[ReplicaHandle]) -> None:
        pass

    def lost(self, loss: Loss) -> None:
        assert self.may_write.wait(10)
        self.losses.append(loss)
        self.steps += bool(getattr(loss.error, "oom", False))

    def excluded(self, lane: str) -> Collection[str]:
        return self.spent.get(lane, ())

    def shrink_steps(self) -> int:
        return self.steps


class Started:
    """A pool whose members follow scripts, one for each in the order in which they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lanes: int, *scripts: list[Any]) -> None:
        self.members: list[FakeMember] = []
        left = list(scripts)

        def begin(name: str, lane: int, spec: EngineSpec, options: Any, *, slots: int) -> FakeMember:
            self.options = options
            self.members.append(FakeMember(name, lane, spec, left.pop(0) if left else []))
            return self.members[-1]

        monkeypatch.setattr(pools, "launch", begin)
        monkeypatch.setattr(pools, "node_of", lambda actor_id: "node")
        monkeypatch.setattr(pools, "diagnose", lambda actor_id, node: None)
        monkeypatch.setattr(pools, "statuses", lambda members, seconds: {})
        node = Node(node_id="node", host="h", cpus=8, gpus=0, stable=True)
        info = ClusterInfo(address="a", nodes=(node,), seconds=0.0, stable_resource="dray_stable")
        self.ledger = Ledger()
        self.pool = ReplicaPool("p", SPEC, info, lanes, self.ledger)
        self.pool.start()

    def go_on(self, until: int, seconds: float = 5.0) -> None:
        """Until so many members began."""
        deadline = time.monotonic() + seconds
        while len(self.members) < until:
            assert time.monotonic() < deadline
            self.pool.look()
            self.pool.settle()
            time.sleep(0.01)

    def losses(self, count: int) -> list[Loss]:
        deadline = time.monotonic() + 5
        while len(self.ledger.losses) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.ledger.losses


@pytest.mark.parametrize("error", [ConfigError("argument"), WeightsError("torn"), EngineStartError("no")])
def test_what_keeps_the_only_engine_from_starting_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, error: DrayError
) -> None:
    started = Started(monkeypatch, 1, [error])
    with pytest.raises(type(error)) as caught:
        started.pool.look()
    assert caught.value is error


@pytest.mark.parametrize(
    "error", [ConfigError("World size is larger"), WeightsError("no room"), EngineDeadError("ValueError")]
)
def test_once_an_engine_has_started_no_start_refuses_the_job(
    monkeypatch: pytest.MonkeyPatch, error: DrayError
) -> None:
    started = Started(monkeypatch, 2, [True], [False, error])
    started.go_on(3)
    [loss] = started.losses(1)
    assert isinstance(loss.error, EngineStartError)
    assert str(loss.error) == str(error)
    assert started.members[2].lane == started.members[1].lane == 1


def test_one_of_several_first_starts_may_fail_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, 2, [EngineStartError("its node")], [False])
    started.go_on(3)
    assert started.losses(1)[0].name == "p/replica-0"
    also = Started(monkeypatch, 2, [EngineStartError("the model")], [False, EngineStartError("the model")])
    with pytest.raises(EngineStartError):
        also.go_on(4)


def test_the_first_engine_that_lacks_memory_is_started_smaller_once_that_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(monkeypatch, 1, [EngineStartError("CUDA", oom=True)])
    started.ledger.may_write.clear()
    with pytest.raises(AssertionError):
        started.go_on(2, seconds=1.0)  # it is due, and waits for the charge
    started.ledger.may_write.set()
    started.go_on(2)
    assert started.members[1].spec.arguments["max_num_seqs"] == 128
    assert started.members[1].spec.arguments["max_num_batched_tokens"] == 4096


def test_a_build_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, 2, [True], [])
    started.pool.look()
    started.members[1].overdue = True
    started.go_on(3)
    assert "not ready after 1800 s" in str(started.losses(1)[0].error)
    assert started.members[1].state is MemberState.GONE


def test_a_replica_that_dies_with_its_node_as_it_starts_is_that_nodes_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray says where it was to start only once it has found the node dead."""
    started = Started(monkeypatch, 2, [True], [False, ReplicaLostError("gone")])
    known: list[str] = []
    gone = NodeFacts(alive=False, draining=False, preempted=False, oom=False)

    def settle(actor_id: str, node: str | None) -> NodeFacts:
        known.append("the node")
        return gone

    monkeypatch.setattr(pools, "diagnose", settle)
    monkeypatch.setattr(pools, "node_of", lambda actor_id: known[0] if known else None)
    started.go_on(3)
    [loss] = started.losses(1)
    assert (loss.node, loss.facts) == ("the node", gone)


def test_a_lane_whose_engines_always_die_rests_while_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad GPU of several: its successors come back to it, for the others are taken."""
    dies: list[Any] = [EngineStartError("its GPU")]
    started = Started(monkeypatch, 2, [True], *([*dies] for _ in range(9)))
    started.go_on(3)
    started.ledger.spent = {"replica-1": {"node"}}
    started.go_on(4)  # once more, to go elsewhere
    deadline = time.monotonic() + 30
    while started.members[-1].note is None:
        assert time.monotonic() < deadline
        started.pool.look()
        started.pool.settle()
        time.sleep(0.01)
    assert "rests" in started.members[-1].note
    assert len(started.members) == 4
    started.members[0].state = MemberState.GONE  # the other is lost: it is all there is
    started.pool._due[1] = 0.0
    started.go_on(5)


def test_what_the_store_is_missed_for_is_done_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from dray.errors import StoreUnreachableError

    def away(self: Ledger, lane: str) -> Collection[str]:
        raise StoreUnreachableError("away")

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "excluded", away)
        started = Started(monkeypatch, 1, [True])
        assert started.members == []
        with pytest.raises(StoreUnreachableError):
            started.pool.settle()
    started.go_on(1)


def test_a_node_at_risk_gets_no_new_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, 2, [True], [False, EngineStartError("its node")])
    started.pool.cordon(Node(node_id="risky", host="r", cpus=8, gpus=0, stable=False))
    started.go_on(3)
    assert started.options["label_selector"] == {"ray.io/node-id": "!in(risky)"}
