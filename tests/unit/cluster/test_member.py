"""What a start that takes long is known by: a place, and silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster import member as members
from dray.cluster.member import ReplicaHandle

pytestmark = pytest.mark.unit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(members.time, "monotonic", lambda: found.now)
    return found


@pytest.fixture
def member() -> ReplicaHandle:
    actor = SimpleNamespace(**{name: SimpleNamespace(remote=object) for name in ("ready", "whereabouts")})
    replica: Any = SimpleNamespace(name="r", actor=actor, actor_id="a")
    return ReplicaHandle(lane=0, replica=replica, slots=2)


def test_the_time_of_a_start_begins_when_it_has_a_place(
    member: ReplicaHandle, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: list[str | None] = [None]
    monkeypatch.setattr(members, "node_of", lambda actor_id: place[0])
    for _ in range(10):
        clock.now += 100.0
        assert not member.has_place()
        assert not member.is_overdue(60.0)  # it waits for a GPU, for as long as that takes
    place[0] = "node"
    clock.now += 100.0
    assert member.has_place()
    assert not member.is_overdue(60.0)
    clock.now += 59.0
    assert not member.is_overdue(60.0)
    clock.now += 2.0
    assert member.is_overdue(60.0)


def test_a_question_that_is_not_answered_got_through(
    member: ReplicaHandle, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "wait", lambda references, timeout: ([], references))
    member.unsure = 990.0
    assert not member.poll()
    assert member.unsure == 990.0  # too early to tell
    clock.now += 6.0
    assert not member.poll()
    assert member.unsure is None
    member.unsure = clock.now
    member.ask_again()
    assert not member.poll()
    assert member.unsure == clock.now  # another question, and another quiet time
