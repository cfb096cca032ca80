"""Replicas that work: those that fall silent, whose calls are lost, or whose node is taken back."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.base import START_SECONDS, Node
from dray.cluster.placing import NoGroupError
from dray.driver.replicas.handle import Loss
from dray.driver.replicas.lanes import LONGEST_PAUSE
from dray.driver.replicas.pool import DRAIN_SECONDS, SILENT_SECONDS, ReplicaPool
from dray.driver.watched_time import LOOKS
from dray.engine.protocol import EngineSpec
from dray.errors import EngineDeadError, ReplicaLostError
from dray.kinds import Kind
from dray.notices.notice import SOON
from dray.places import lane_of, replica_name
from dray.store import ReplicaState
from tests.support.clocks import replace_here
from tests.unit.driver.scripted import NODE, QUICK, Poll, ScriptedFleet, ScriptedProcess

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, stall_seconds=600.0)
UNSURE = ReplicaLostError("the call was lost", unsure=True)


class NoLosses:
    """The budgets of a job that has lost nothing."""

    def excluded(self, lane: str) -> set[str]:
        return set()

    def shrink_steps(self) -> int:
        return 0

    def undecided(self, lane: str) -> bool:
        return False


class Working:
    """A pool of replicas that are ready, under a clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *scripts: list[Poll]) -> None:
        self.clock = SimpleNamespace(now=1000.0)
        replace_here(monkeypatch, time, "monotonic", lambda: self.clock.now)
        self.fleet = ScriptedFleet(*(scripts or ([True],)))
        self.pool = ReplicaPool("p", SPEC, self.fleet, len(scripts) or 1, QUICK)
        self.losses: list[Loss] = []
        self.step()

    @property
    def first(self) -> ScriptedProcess:
        return self.fleet.processes[0]

    def step(self, seconds: float = 0.1) -> None:
        self.clock.now += seconds
        self.pool.launch_due(NoLosses())
        self.pool.look()
        self.losses += self.pool.take_losses()

    def steps(self, seconds: float, each: float = 1.0) -> None:
        """So many seconds, in which the driver looks again and again."""
        for _ in range(round(seconds / each)):
            self.step(each)


def test_names_belong_to_the_job() -> None:
    assert replica_name("job/1", 3) == "job/1/replica-3"
    assert replica_name("job/1", 3, 2) == "job/1/replica-3~2"
    assert lane_of("job/1/replica-3~2") == lane_of("job/1/replica-3") == "replica-3"


def test_a_replica_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    working.first.silent = True
    working.steps(SILENT_SECONDS - 1)
    assert working.losses == []
    working.steps(2)
    [loss] = working.losses
    assert isinstance(loss.error, EngineDeadError)
    assert working.first.killed
    working.step(1)
    assert working.fleet.processes[1].name == "p/replica-0~1"


@pytest.mark.parametrize("moment", range(8))
def test_a_driver_that_stood_still_finds_its_replicas_as_well_as_they_are(
    monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """A replica cannot answer what it was not asked: silence counts while the driver looks."""
    ready: list[list[Poll]] = [[True] for _ in range(30)]
    working = Working(monkeypatch, *ready)
    working.pool._intervals = replace(QUICK, status=1.0)
    working.steps(10, each=0.2)
    working.steps(0.2 * moment, each=0.2)  # with a question open, or without
    for _ in range(3):
        working.step(600.0)
        working.steps(5, each=0.2)
    assert working.losses == []
    working.first.silent = True
    working.step(600.0)
    working.steps(SILENT_SECONDS - 8, each=0.2)
    assert working.losses == []
    working.steps(10, each=0.2)
    assert [loss.replica.name for loss in working.losses] == ["p/replica-0"]


def test_a_driver_whose_steps_take_long_loses_no_replica_but_one_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working = Working(monkeypatch, [True], [True])
    working.steps(600, each=20.0)
    assert working.losses == []
    working.first.silent = True
    working.steps(20 * (LOOKS - 1), each=20.0)
    assert working.losses == []
    working.steps(60, each=20.0)
    assert [loss.replica.name for loss in working.losses] == ["p/replica-0"]


def test_a_driver_that_stood_still_ends_nothing_that_it_gave_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working = Working(monkeypatch, [True], [False])
    working.steps(3)
    assert not working.pool.idle(20.0)
    working.first.answers.append(UNSURE)
    working.steps(2)
    working.step(2 * START_SECONDS)
    assert not working.pool.idle(20.0)  # it may have had shards meanwhile
    working.first.answers.append(UNSURE)
    working.steps(2)
    assert (working.losses, working.pool.ready()) == ([], 1)
    working.fleet.processes[1].polls = [True]
    working.step()
    assert working.pool.ready() == 2
    working.steps(25)
    assert len(working.pool.idle(20.0)) == 2


def test_a_lost_call_is_no_lost_replica_until_the_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    working.first.answers.append(UNSURE)
    working.steps(3)
    assert working.losses == []
    working.first.answers.append(UNSURE)
    working.first.gone = True
    working.steps(3)
    assert [loss.error for loss in working.losses] == [UNSURE]


def test_replicas_that_shards_lost_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch, [True], [True])
    asked: list[str] = []
    for process in working.fleet.processes:
        monkeypatch.setattr(process, "ask_status", lambda name=process.name: asked.append(name))
    working.pool.ask_now({working.first.name, "another"})
    assert asked == [working.first.name]
    working.first.answers.append(ReplicaLostError("gone"))
    working.first.asked = working.first.after
    working.step(0.0)
    working.pool.ask_now({working.first.name})
    assert asked.count(working.first.name) == 1  # its end is known


def test_the_store_is_asked_of_replicas_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that leaves: a shard task may lose it on the way."""
    working = Working(monkeypatch, [True], [False])
    assert working.pool.live() == {"p/replica-0"}
    working.first.sessions = 1
    working.pool.drain_node(NODE, None)
    working.step()
    assert working.pool.live() == {"p/replica-0"}
    working.first.sessions = 0
    working.step()
    assert working.pool.live() == set()


def test_calls_that_are_lost_for_too_long_are_a_lost_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    working.first.answers += [UNSURE] * 100
    working.steps(SILENT_SECONDS - 2)
    assert working.losses == []
    working.steps(8)
    assert len(working.losses) == 1


def test_a_node_that_goes_has_its_replicas_finish_and_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch, [True], [False])
    working.first.sessions = 1
    working.pool.drain_node(NODE, time.time() + 100.0)
    assert working.fleet.drained == [NODE]
    assert working.first.drains == [DRAIN_SECONDS]
    assert working.fleet.processes[1].killed  # it has loaded for nothing
    working.step()
    assert [one.avoid for one in working.fleet.processes[2:]] == [{"node"}, {"node"}]
    assert not working.first.was_killed()  # it has a shard still
    working.first.sessions = 0
    working.step()
    assert working.first.was_killed()
    assert working.losses == []


@pytest.mark.parametrize(("left", "told", "given"), [(100.0, 95.0, DRAIN_SECONDS), (3.0, 1.0, 0.0)])
def test_a_node_that_goes_takes_none_of_the_others_along(
    monkeypatch: pytest.MonkeyPatch, left: float, told: float, given: float
) -> None:
    working = Working(monkeypatch, [True], [False])
    first, other = working.fleet.processes
    other.place = "other"
    other.polls.append(True)
    working.step()
    assert working.pool.ready() == 2
    drained: list[tuple[str, float]] = []
    replace_here(monkeypatch, time, "time", lambda: 5000.0)
    monkeypatch.setattr(working.fleet, "drain", lambda node, at: drained.append((node.node_id, at)))
    working.pool.drain_node(NODE, 5000.0 + left)
    assert drained == [("node", 5000.0 + told)]  # the cluster sees the end come
    assert (first.drains, other.drains, other.killed) == ([given], [], False)
    assert working.pool.ready() == 1


def test_a_node_that_went_is_avoided_until_it_is_surely_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    working.pool.drain_node(NODE, time.time() + 100.0)
    working.clock.now += 100.0 + SILENT_SECONDS - 2.0
    assert working.pool._risky() == {"node"}
    working.clock.now += 4.0
    assert working.pool._risky() == set()


def test_a_lane_has_one_replica_however_long_that_takes_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch, [False])
    assert [one.state for one in working.pool.take_changed()] == [ReplicaState.STARTING]
    working.steps(2 * LONGEST_PAUSE, each=5.0)
    assert len(working.fleet.processes) == 1


def test_a_replica_that_leaves_has_its_seconds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    working.first.sessions = 1
    working.pool.drain_node(NODE, time.time() + 9.0)
    assert working.first.drains == [pytest.approx(4.0, abs=0.5)]
    working.steps(6)
    assert not working.first.was_killed()
    working.steps(2)
    assert working.first.was_killed()


def test_a_replica_that_becomes_ready_on_a_leaving_node_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch, [False, True])
    working.first.place = None
    working.pool.drain_node(NODE, None)
    working.first.place = "node"
    working.step()
    assert working.first.drains == [0.0]
    assert working.pool.ready() == 0
    other = Node(node_id="other", host="o", cpus=1, gpus=0, stable=False)
    working.pool.drain_node(other, None)
    assert working.first.drains == [0.0]


def test_a_node_that_outlives_its_notice_keeps_the_replicas_that_start_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the driver would drain each as it becomes ready, and start its successor at once, for ever."""
    working = Working(monkeypatch)
    working.pool.drain_node(NODE, None)
    working.steps(SOON + SILENT_SECONDS - 2.0)
    second = working.fleet.processes[-1]
    second.polls = [True]
    working.step()
    assert second.drains == [0.0]  # the notice may come true yet
    working.steps(2.0)
    third = working.fleet.processes[-1]
    third.polls = [True]
    working.step()
    assert (third.drains, working.pool.ready()) == ([], 1)


def test_what_the_store_was_not_told_of_is_new_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    changed = working.pool.take_changed()
    assert [(one.name, one.state) for one in changed] == [("p/replica-0", ReplicaState.READY)]
    assert working.pool.take_changed() == []
    working.pool.put_back(changed)
    assert working.pool.take_changed() == changed
    working.clock.now += QUICK.publish + 0.1  # shards may have found it out of reach meanwhile
    assert working.pool.take_changed() == changed


def test_a_replica_is_idle_while_it_has_no_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)
    working.steps(8)
    [idle] = working.pool.idle(4.0)
    working.pool.note(idle, "has no work: memory")
    assert [one.note for one in working.pool.take_changed()] == ["has no work: memory"]
    working.first.sessions = 1
    working.steps(2)
    assert working.pool.idle(4.0) == []
    assert [one.note for one in working.pool.take_changed()] == [None]


def test_the_end_leaves_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch, [True], [False])
    working.pool.stop()
    assert [one.killed for one in working.fleet.processes] == [True, True]


@pytest.mark.parametrize("ready", [True, False])
def test_a_replica_leaves_with_any_of_its_nodes(monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    working = Working(monkeypatch, [])
    working.first.place, working.first.beside = "other", ("node",)
    if ready:
        working.first.polls.append(True)
        working.step()
        assert working.pool.working_on() == [("other", "node")]
        assert working.pool.nodes() == {"other", "node"}
    working.pool.drain_node(NODE, time.time() + 100.0)
    assert working.first.drains == ([DRAIN_SECONDS] if ready else [])
    assert working.first.killed == (not ready)
    working.step()
    assert len(working.fleet.processes) == 2


def test_a_replica_that_becomes_ready_beside_a_leaving_node_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch, [])
    working.pool._risky.note_end("node", 100.0)
    working.first.place, working.first.beside = "other", ("node",)
    working.first.polls.append(True)
    working.step()
    assert working.first.drains == [0.0]


def test_places_that_cannot_be_asked_for_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Ray's head is away, say: no job ends for it."""
    working = Working(monkeypatch, [], [])
    launch, errors = working.fleet.launch, [NoGroupError("Ray made no placement group")]

    def busy(*arguments: Any, **options: Any) -> ScriptedProcess:
        if errors:
            raise errors.pop()
        return launch(*arguments, **options)

    monkeypatch.setattr(working.fleet, "launch", busy)
    working.pool.drain_node(NODE, time.time() + 100.0)
    working.step()
    assert len(working.fleet.processes) == 3  # of the two that are to follow
    working.step(LONGEST_PAUSE - 1)
    assert len(working.fleet.processes) == 3
    working.step(2)
    assert [one.name for one in working.fleet.processes[2:]] == ["p/replica-1~1", "p/replica-0~2"]
