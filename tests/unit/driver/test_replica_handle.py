"""What a start that takes long is known by: a place, and silence."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from dray.driver.replicas.handle import ReplicaHandle
from dray.engine.protocol import EngineSpec
from dray.kinds import Kind
from dray.store import ReplicaState
from tests.support.clocks import replace_here
from tests.unit.driver.scripted import ScriptedProcess

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=1000.0)
    replace_here(monkeypatch, time, "monotonic", lambda: found.now)
    replace_here(monkeypatch, time, "clock_gettime", lambda _: found.now)
    return found


@pytest.fixture
def process() -> ScriptedProcess:
    return ScriptedProcess(name="job/replica-0", spec=SPEC, avoid=frozenset(), place=None)


@pytest.fixture
def replica(process: ScriptedProcess, clock: SimpleNamespace) -> ReplicaHandle:
    return ReplicaHandle(lane=0, process=process, slots=2, watched=lambda: clock.now)


def test_the_time_of_a_start_begins_when_it_has_a_place(
    replica: ReplicaHandle, process: ScriptedProcess, clock: SimpleNamespace
) -> None:
    for _ in range(10):
        clock.now += 100.0
        assert not replica.has_place()
        assert not replica.is_overdue(60.0)  # it waits for a GPU, for as long as that takes
    process.place = "node"
    clock.now += 100.0
    assert replica.has_place()
    assert not replica.is_overdue(60.0)
    clock.now += 59.0
    assert not replica.is_overdue(60.0)
    clock.now += 2.0
    assert replica.is_overdue(60.0)


def test_what_a_start_takes_begins_when_it_has_a_place(
    replica: ReplicaHandle,
    process: ScriptedProcess,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job would never grow whose first replica waited for its machine for longer than is left to do."""
    replace_here(monkeypatch, time, "time", lambda: replica.began + clock.now - 1000.0)
    clock.now += 1500.0
    assert not replica.has_place()
    process.place, process.polls = "node", [True]
    assert replica.has_place()
    clock.now += 40.0
    assert replica.poll() and replica.start is not None
    assert replica.start.seconds == pytest.approx(40.0, abs=1.0)
    assert replica.start.ready - replica.start.began == pytest.approx(1540.0, abs=1.0)


def _unsure(replica: ReplicaHandle) -> float | None:
    """As it is now: mypy takes a value that a test has set for the value for ever."""
    return replica.unsure


@pytest.mark.parametrize(("waited", "seconds"), [(0.0, 6.0), (200.0, 4.0)])
def test_a_start_that_was_ready_at_the_first_look_took_all_of_its_time(
    waited: float,
    seconds: float,
    replica: ReplicaHandle,
    process: ScriptedProcess,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process begins with the imports, long before it builds the engine."""
    replace_here(monkeypatch, time, "time", lambda: replica.began + clock.now - 1000.0)
    if waited:
        clock.now += waited
        assert not replica.has_place()
    clock.now += seconds
    process.place, process.polls = "node", [True]
    assert replica.poll() and replica.start is not None
    assert replica.start.seconds == pytest.approx(seconds, abs=0.1)


def test_a_question_that_is_not_answered_got_through(replica: ReplicaHandle, clock: SimpleNamespace) -> None:
    replica.unsure = 990.0
    assert not replica.poll()
    assert _unsure(replica) == 990.0  # too early to tell
    clock.now += 6.0
    assert not replica.poll()
    assert _unsure(replica) is None
    replica.unsure = clock.now
    replica.ask_again()
    assert not replica.poll()
    assert replica.unsure == clock.now  # another question, and another quiet time


@pytest.mark.parametrize(
    ("ahead", "took"), [(-3600.0, 9.0), (3600.0, 9.0), (-2.0, 7.0)], ids=["behind", "ahead", "alike"]
)
def test_a_start_ends_within_the_drivers_own_time(
    replica: ReplicaHandle,
    process: ScriptedProcess,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    took: float,
) -> None:
    """The node's clock is another one, or NTP set the clock of both. No start takes less than no time:
    the policy of a job with a deadline refuses that.
    """
    process.place, process.polls = "node", [True]
    began = replica.began
    clock.now += 9.0
    replace_here(monkeypatch, time, "time", lambda: began + 9.0 + ahead)
    assert replica.poll()
    assert replica.start is not None
    assert replica.start.ready - replica.start.began == pytest.approx(took, abs=0.01)
    assert (replica.state, replica.node, replica.max_num_seqs) == (ReplicaState.READY, "node", 8)
