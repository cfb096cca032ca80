"""Which lanes of a pool can be done without, and which replicas' nodes can be given back."""

from __future__ import annotations

import time

import pytest

from dray.driver.replicas.handle import ReplicaHandle
from dray.driver.replicas.lanes import LONGEST_PAUSE, Lanes, on_free_nodes
from dray.engine.protocol import EngineSpec
from dray.kinds import Kind
from dray.store import ReplicaState
from tests.unit.driver.scripted import ScriptedProcess

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments={})


def test_those_that_wait_go_before_those_that_start_and_idle_ones() -> None:
    lanes = Lanes(6, relaunch=1.0)
    idle, busy = _replica(0, ReplicaState.READY), _replica(1, ReplicaState.READY)
    starting, unplaced = _replica(2, ReplicaState.STARTING), _replica(3, ReplicaState.STARTING, place=None)
    leaving = _replica(4, ReplicaState.LEAVING)
    for lane in range(5):
        lanes.started(lane)
    assert lanes.spare([idle, busy, starting, unplaced, leaving], [idle]) == [3, 5, 2, 0]
    assert lanes.spare([idle, busy, starting, unplaced, leaving], []) == [3, 5, 2]


def test_a_closed_lane_is_opened_again_before_new_ones() -> None:
    lanes = Lanes(3, relaunch=1.0)
    for lane in range(3):
        lanes.started(lane)
    lanes.close(1)
    lanes.failed(1)  # its last replica dies later: nothing comes of that
    assert (len(lanes), lanes.due()) == (2, [])
    lanes.open(2)
    assert (len(lanes), lanes.due()) == (4, [1, 3])


def test_a_lane_may_fail_for_weeks() -> None:
    """One bad GPU in a long job: 2 to the power of its failures is no float any more."""
    lanes = Lanes(1, relaunch=0.2)
    for _ in range(2_000):
        lanes.failed(0)
    assert lanes.due() == []
    assert lanes._due[0] - time.monotonic() == pytest.approx(LONGEST_PAUSE, abs=1.0)


def test_a_node_is_given_back_whole() -> None:
    idle = [_replica(lane, ReplicaState.READY, place=node) for lane, node in enumerate("aab")]
    busy = _replica(3, ReplicaState.READY, place="b")
    assert on_free_nodes(idle, [*idle, busy]) == idle[:2]
    assert on_free_nodes(idle, idle) == idle
    assert on_free_nodes([], [busy]) == []


def _replica(lane: int, state: ReplicaState, place: str | None = "a") -> ReplicaHandle:
    process = ScriptedProcess(name=f"job/1/replica-{lane}", spec=SPEC, avoid=frozenset(), place=place)
    made = ReplicaHandle(lane=lane, process=process, slots=2, state=state, node=place)
    made.has_place()  # as the pool's last look at places found
    return made
