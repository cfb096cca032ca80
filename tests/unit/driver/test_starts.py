"""What the pool makes of starts that fail: which one ends the job, and which is a loss like any other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.base import Node
from dray.cluster.placing import NoGroupError
from dray.driver.replicas import lanes
from dray.driver.replicas import pool as pools
from dray.driver.replicas.handle import Loss
from dray.driver.replicas.losses import Losses
from dray.driver.replicas.pool import ReplicaPool
from dray.engine.protocol import EngineSpec
from dray.errors import (
    ConfigError,
    DrayError,
    EngineDeadError,
    EngineStartError,
    NotImportedError,
    ReplicaLostError,
    StoreUnreachableError,
    WeightsError,
)
from dray.kinds import Kind
from dray.places import lane_of
from dray.store import JobLease, ReplicaState
from tests.support.clocks import replace_here
from tests.unit.driver.scripted import (
    NODE,
    QUICK,
    Poll,
    ScriptedFleet,
    ScriptedProcess,
    capacity_of,
)

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)


class Budgets:
    """What a store would say of earlier losses: ``steps`` smaller, ``spent`` nodes by lane."""

    def __init__(self) -> None:
        self.steps = 0
        self.spent: dict[str, set[str]] = {}
        self.undecided_lanes: set[str] = set()
        self.away = False

    def excluded(self, lane: str) -> Collection[str]:
        if self.away:
            raise StoreUnreachableError("away")
        return self.spent.get(lane, ())

    def shrink_steps(self) -> int:
        return self.steps

    def undecided(self, lane: str) -> bool:
        return lane in self.undecided_lanes


class Started:
    """A pool whose replicas follow scripts, one for each in the order in which they begin."""

    def __init__(self, lanes: int, *scripts: Sequence[Poll]) -> None:
        self.fleet = ScriptedFleet(*scripts)
        self.budgets = Budgets()
        self.losses: list[Loss] = []
        self.pool = ReplicaPool("p", SPEC, self.fleet, lanes, QUICK)
        self.pool.launch_due(self.budgets)

    @property
    def processes(self) -> list[ScriptedProcess]:
        return self.fleet.processes

    def go_on(self, until: int) -> None:
        """Until so many replicas began."""
        self.until(lambda: len(self.processes) >= until)

    def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline
            self.pool.look()
            self.losses += self.pool.take_losses()
            self.pool.launch_due(self.budgets)
            time.sleep(0.005)


@pytest.mark.parametrize("error", [ConfigError("argument"), WeightsError("torn"), EngineStartError("no")])
def test_what_keeps_the_only_engine_from_starting_ends_the_job(error: DrayError) -> None:
    started = Started(1, [error])
    with pytest.raises(type(error)) as caught:
        started.pool.look()
    assert caught.value is error


def test_no_replica_comes_again_to_a_node_that_cannot_import_dray() -> None:
    """Not even where no other has room. Where there is no other at all, the job is not to wait for one."""
    started = Started(1, [NotImportedError("no dray")], [NotImportedError("no dray")])
    other = replace(NODE, node_id="other")
    started.fleet.seen = capacity_of([NODE, other])
    started.fleet.place = other.node_id
    started.until(lambda: len(started.losses) == 2)
    assert [loss.hopeful for loss in started.losses] == [True, False]
    assert [sorted(one.never) for one in started.processes] == [[], [NODE.node_id]]
    started.go_on(3)
    assert started.processes[2].never == {NODE.node_id, other.node_id}


@pytest.mark.parametrize(
    "error", [ConfigError("World size is larger"), WeightsError("no room"), EngineDeadError("ValueError")]
)
def test_once_an_engine_has_started_no_start_refuses_the_job(error: DrayError) -> None:
    started = Started(2, [True], [False, error])
    started.go_on(3)
    [loss] = started.losses
    assert isinstance(loss.error, EngineStartError)
    assert str(loss.error) == str(error)
    assert lane_of(started.processes[2].name) == lane_of(started.processes[1].name) == "replica-1"


def test_one_of_several_first_starts_may_fail_and_not_all() -> None:
    started = Started(2, [EngineStartError("its node")], [False])
    started.go_on(3)
    assert started.losses[0].replica.name == "p/replica-0"
    also = Started(2, [EngineStartError("the model")], [False, EngineStartError("the model")])
    with pytest.raises(EngineStartError):
        also.go_on(4)


def test_one_bad_node_of_many_is_no_bad_model() -> None:
    """Eight replicas fail at once, again and again, while the others load the model for minutes."""
    dies = [EngineStartError("its node")]
    started = Started(
        64, *([*dies] for _ in range(8)), *([] for _ in range(56)), *([*dies] for _ in range(30))
    )
    started.until(lambda: len(started.losses) > 30)
    assert {lane_of(one.replica.name) for one in started.losses} == {f"replica-{lane}" for lane in range(8)}
    assert all(loss.hopeful for loss in started.losses)


@pytest.mark.parametrize(
    ("failing", "starting", "waiting", "ready", "hopeful"),
    [
        (1, 1, 0, 0, True),
        (2, 1, 0, 0, False),  # the model of most is broken: the job does not wait for one that hangs
        (2, 1, 1, 0, False),  # one that has no place tells nothing
        (2, 1, 0, 1, True),
    ],
)
def test_what_speaks_for_the_model(
    failing: int, starting: int, waiting: int, ready: int, hopeful: bool
) -> None:
    scripts: list[list[Poll]] = [[False, False, EngineStartError("no")] for _ in range(failing)]
    scripts += [[] for _ in range(starting + waiting)]
    scripts += [[True] for _ in range(ready)]
    started = Started(failing + starting + waiting + ready, *scripts)
    started.pool.look()
    for replica in [one for one in started.pool.take_changed() if one.lane >= failing][:waiting]:
        replica.note = "asks for 1 GPU"
    started.until(lambda: len(started.losses) >= failing)
    assert started.losses[failing - 1].hopeful is hopeful


def test_the_first_engine_that_lacks_memory_is_started_smaller_once_that_is_charged() -> None:
    started = Started(1, [EngineStartError("CUDA", oom=True)])
    started.budgets.undecided_lanes.add("replica-0")
    began = time.monotonic()
    started.until(lambda: time.monotonic() > began + 0.2)  # it is due, and waits for the charge
    assert len(started.processes) == 1
    started.budgets.undecided_lanes.clear()
    started.budgets.steps = 1
    started.go_on(2)
    assert started.processes[1].spec.arguments["max_num_seqs"] == 128
    assert started.processes[1].spec.arguments["max_num_batched_tokens"] == 4096


def test_an_engine_that_ran_out_of_memory_comes_back_with_half_of_what_it_ran_with() -> None:
    """It said that it runs eight requests at a time: half of what engines usually run is no less."""
    started = Started(1, [True])
    started.until(lambda: started.pool.ready() == 1)
    started.processes[0].answers.append(EngineDeadError("CUDA", oom=True))
    started.budgets.steps = 1
    started.go_on(2)
    assert started.processes[1].spec.arguments["max_num_seqs"] == 4


def test_a_replica_that_is_ready_is_told_once_and_has_places_by_the_size_of_shards() -> None:
    """Shards of as many rows as a batch: two hold the next two batches while a third begins."""
    pool = ReplicaPool("p", SPEC, ScriptedFleet([True]), 1, QUICK, shard_rows=8)
    pool.launch_due(Budgets())
    pool.look()
    assert [start.name for start in pool.take_ready()] == ["p/replica-0"]
    assert pool.take_ready() == []
    assert [(one.state, one.slots) for one in pool.take_changed()] == [(ReplicaState.READY, 3)]


@pytest.mark.parametrize("oom", [True, False])
def test_a_lack_of_memory_is_undecided_until_it_is_judged(oom: bool) -> None:
    started = Started(2, [True], [False, EngineStartError("CUDA", oom=oom)])
    started.until(lambda: bool(started.losses))
    lease = JobLease(job_id="job", key=1, epoch=1, owner="driver", ttl=60.0)
    losses = Losses(lease, lambda event: None)
    losses.add(started.losses)
    assert losses.undecided("replica-1") is oom
    assert not losses.undecided("replica-0")


def test_a_build_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(2, [True], [])
    started.until(lambda: started.pool.ready() == 1)
    monkeypatch.setattr(pools, "START_SECONDS", -1.0)
    started.go_on(3)
    assert "not ready after -1 s" in str(started.losses[0].error)
    assert started.losses[0].replica.state is ReplicaState.GONE
    assert started.processes[1].killed


def test_a_replica_that_dies_with_its_node_as_it_starts_is_that_nodes_loss() -> None:
    """The cluster says where it was to start only once it has found the node dead."""
    started = Started(2, [True], [False, ReplicaLostError("gone")])
    started.processes[1].place = None
    started.until(lambda: bool(started.losses))
    [loss] = started.losses
    assert loss.replica.node is None
    started.processes[1].place = "the node"
    assert loss.replica.process.node() == "the node"  # as test_losses.py has it judged


def test_a_lane_whose_engines_always_die_rests_while_others_work() -> None:
    """One bad GPU of several: its successors come back to it, for the others are taken."""
    dies = [EngineStartError("its GPU")]
    started = Started(2, [True], *([*dies] for _ in range(9)))
    started.go_on(3)
    started.budgets.spent = {"replica-1": {"node"}}
    started.go_on(4)  # once more, to go elsewhere
    assert started.processes[3].avoid == {"node"}
    notes: dict[str, str] = {}

    def is_noted() -> bool:
        notes.update({lane_of(one.name): one.note for one in started.pool.take_changed() if one.note})
        return bool(notes)

    started.until(is_noted, 30.0)
    assert "rests" in notes["replica-1"]
    assert len(started.processes) == 4
    started.processes[0].answers.append(ReplicaLostError("gone"))  # the other is lost: it is all there is
    started.until(lambda: not started.pool.ready())
    started.pool._lanes._due[1] = 0.0
    started.pool.launch_due(started.budgets)
    assert [lane_of(one.name) for one in started.processes].count("replica-1") == 4


def test_a_lane_whose_places_could_not_be_asked_for_has_not_tried_others_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last replica was not told to avoid the node on which it died."""
    monkeypatch.setattr(pools, "LONGEST_PAUSE", 0.01)
    started = Started(2, [True], [EngineStartError("its GPU")])
    started.until(lambda: bool(started.losses))
    started.budgets.spent = {"replica-1": {"node"}}
    launch, errors = started.fleet.launch, [NoGroupError("Ray made no placement group")]

    def busy(*arguments: Any, **options: Any) -> ScriptedProcess:
        if errors:
            raise errors.pop()
        return launch(*arguments, **options)

    monkeypatch.setattr(started.fleet, "launch", busy)
    started.go_on(3)
    assert started.processes[2].avoid == {"node"}


def test_what_the_store_is_missed_for_is_done_when_it_is_back() -> None:
    started = Started(1)
    pool = ReplicaPool("q", SPEC, started.fleet, 1, QUICK)
    started.budgets.away = True
    with pytest.raises(StoreUnreachableError):
        pool.launch_due(started.budgets)
    assert len(started.processes) == 1
    started.budgets.away = False
    pool.launch_due(started.budgets)
    pool.launch_due(started.budgets)
    assert [one.name for one in started.processes] == ["p/replica-0", "q/replica-0"]


def test_a_node_at_risk_gets_no_new_replicas() -> None:
    started = Started(2, [True], [False, EngineStartError("its node")])
    started.pool.cordon(Node(node_id="risky", host="r", cpus=8, gpus=0, stable=False))
    started.go_on(3)
    assert started.processes[2].avoid == {"risky"}


def test_no_replica_is_asked_for_its_place_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is one to Ray's head, and a thousand replicas may wait."""
    now = [time.monotonic()]
    replace_here(monkeypatch, time, "monotonic", lambda: now[0])
    started = Started(3)
    started.processes[1].place = started.processes[2].place = None
    now[0] += 10.0
    started.pool.look()
    asked: list[str] = []
    for process in started.processes:
        monkeypatch.setattr(process, "node", lambda name=process.name: asked.append(name))
    now[0] += 2.0  # which the next look will tell of
    assert (started.pool.unplaced(9.0), started.pool.unplaced(11.0)) == (2, 0)
    started.pool.resize(1)
    assert [one.killed for one in started.processes] == [False, True, True]
    assert asked == []


def test_a_lane_waits_longer_after_each_failure_and_a_ready_replica_ends_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pauses = [1000.0], []
    for module in (pools, lanes):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    dies = [EngineStartError("no")]
    started = Started(2, [True], dies, dies, dies, [True, ReplicaLostError("x")])
    for failures in (1, 2, 3):
        started.until(lambda failures=failures: len(started.losses) == failures)  # type: ignore[misc]
        pauses.append(started.pool._lanes._due[1] - now[0])
        now[0] += 1.0
    assert pauses == pytest.approx([QUICK.relaunch * 2**failures for failures in (1, 2, 3)])
    started.until(lambda: started.pool.ready() == 2)
    started.processes[-1].answers.append(ReplicaLostError("gone"))
    started.until(lambda: len(started.losses) == 4)
    assert started.pool._lanes.failures[1] == 1
