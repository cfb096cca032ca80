"""When a notice is obeyed, and what becomes of it while the store is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from dray.cluster import Node
from dray.driver.events import Event, NodeNoticed, Warned
from dray.driver.interruptions import LEAD_SECONDS, InterruptionHandler
from dray.errors import StoreTransientError
from dray.notices import Notice, NoticeKind
from dray.store import Store, open_store
from tests.support.clocks import replace_here
from tests.support.stores import ready_job
from tests.unit.driver.scripted import BreakableStore, ScriptedFleet

pytestmark = pytest.mark.unit

NODE = Node(node_id="n", host="h", cpus=1, gpus=0, stable=False)


def _notice(seconds: float | None, kind: NoticeKind = NoticeKind.INTERRUPTION) -> Notice:
    deadline = None if seconds is None else time.time() + seconds
    return Notice(source="aws", kind=kind, action="terminate", deadline=deadline, seen_at=0.0, id="1")


class _Pool:
    """Keeps what it is told of nodes."""

    def __init__(self) -> None:
        self.left: list[tuple[Node, float | None]] = []
        self.cordoned: list[Node] = []

    def drain_node(self, node: Node, deadline: float | None) -> None:
        self.left.append((node, deadline))

    def cordon(self, node: Node) -> None:
        self.cordoned.append(node)


class _Heard:
    """An InterruptionHandler whose nodes a test speaks for."""

    def __init__(self) -> None:
        self.fleet = ScriptedFleet()
        self.pool = _Pool()
        self.events: list[Event] = []
        self.handler = InterruptionHandler("job", self.fleet, self.pool, self.events.append)  # type: ignore[arg-type]

    def say(self, notice: Notice) -> None:
        self.fleet.fresh.append((NODE, notice))
        self.handler.look()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        ready_job(opened)
        yield opened


@pytest.mark.parametrize("seconds", [None, 5.0, 120.0, LEAD_SECONDS - 1])
def test_a_spot_notice_is_obeyed_at_once(seconds: float | None) -> None:
    heard = _Heard()
    heard.say(_notice(seconds))
    assert len(heard.pool.left) == 1
    heard.handler.look()
    assert len(heard.pool.left) == 1
    [event] = heard.events
    assert isinstance(event, NodeNoticed)
    assert event.text == "node h: interruption notice of aws: terminate"


def test_maintenance_in_an_hour_is_obeyed_when_it_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _Heard()
    notice = _notice(3600, NoticeKind.MAINTENANCE)
    heard.say(notice)
    assert heard.pool.left == []
    assert heard.pool.cordoned == [NODE]  # the node works on, and gets nothing new
    with monkeypatch.context() as later:
        replace_here(later, time, "time", lambda: (notice.deadline or 0.0) - LEAD_SECONDS)
        heard.handler.look()
    assert heard.pool.left == [(NODE, notice.deadline)]


def test_a_risk_is_recorded_and_ends_nothing(store: Store) -> None:
    heard = _Heard()
    heard.say(_notice(None, NoticeKind.REBALANCE))
    heard.handler.record(store)
    assert heard.pool.left == []
    assert heard.pool.cordoned == [NODE]
    assert len(store.notices("job")) == 1


def test_a_pause_of_seconds_is_recorded_and_its_node_works_on(store: Store) -> None:
    heard = _Heard()
    freeze = replace(_notice(60.0, NoticeKind.MAINTENANCE), source="azure", action="Freeze", id="event-7")
    heard.say(freeze)
    heard.handler.record(store)
    assert (heard.pool.left, heard.pool.cordoned) == ([], [])
    [stored] = store.notices("job")
    assert (stored.node, stored.source, stored.action) == ("n", "azure", "Freeze")
    assert (stored.kind, stored.event, stored.deadline) == (
        NoticeKind.MAINTENANCE,
        "event-7",
        freeze.deadline,
    )


def test_a_source_that_cannot_be_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _Heard()
    monkeypatch.setattr(heard.fleet, "warnings", lambda: ["node h: aws does not answer"])
    heard.handler.look()
    assert heard.events == [Warned(line="node h: aws does not answer")]


def test_what_the_store_could_not_be_told_it_is_told_later(store: Store) -> None:
    heard = _Heard()
    broken = BreakableStore(store)
    with broken.away(StoreTransientError("away")):
        heard.say(_notice(30))
        assert len(heard.pool.left) == 1  # obeyed all the same
        with pytest.raises(StoreTransientError):
            heard.handler.record(cast("Store", broken))
    heard.handler.record(store)
    heard.handler.record(store)
    assert [one.node for one in store.notices("job")] == ["n"]
