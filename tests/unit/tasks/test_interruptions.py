"""When a notice is obeyed, and what becomes of it while the store is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster import Node
from dray.errors import StoreTransientError
from dray.notices import Kind, Notice
from tasks import interruptions
from tasks.interruptions import LEAD_SECONDS, InterruptionHandler

pytestmark = pytest.mark.unit

NODE = Node(node_id="n", host="h", cpus=1, gpus=0, stable=False)


def _notice(seconds: float | None, kind: Kind = Kind.INTERRUPTION) -> Notice:
    deadline = None if seconds is None else time.time() + seconds
    return Notice(source="aws", kind=kind, action="terminate", deadline=deadline, seen_at=0.0, id="1")


class _Watchers:
    def __init__(self) -> None:
        self.fresh: list[tuple[Node, Notice]] = []
        self.ours: list[Node] = []

    def look(self) -> list[tuple[Node, Notice]]:
        found, self.fresh = self.fresh, []
        return found

    def drained(self, node: Node) -> None:
        self.ours.append(node)

    def take_told(self) -> list[str]:
        return []


class _Heard:
    """An InterruptionHandler with watchers that a test speaks for, and a store that may be away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        self.left: list[tuple[Node, float | None]] = []
        self.recorded: list[Any] = []
        self.watchers = _Watchers()

        @contextmanager
        def reopened(job: object) -> Iterator[object]:
            if self.away:
                raise StoreTransientError("away")
            yield SimpleNamespace(record_notice=lambda job_id, notice: self.recorded.append(notice))

        monkeypatch.setattr(interruptions, "reopen", reopened)
        monkeypatch.setattr(interruptions, "NodeWatchers", lambda: self.watchers)
        monkeypatch.setattr(interruptions, "get_run_logger", lambda: logging.getLogger("test"))
        self.cordoned: list[Node] = []
        pool = SimpleNamespace(
            drain_node=lambda node, deadline: self.left.append((node, deadline)), cordon=self.cordoned.append
        )
        self.noticing = InterruptionHandler(SimpleNamespace(job_id="j"), pool)  # type: ignore[arg-type]

    def say(self, notice: Notice) -> None:
        self.watchers.fresh.append((NODE, notice))
        self.noticing.look()


@pytest.mark.parametrize("seconds", [None, 5.0, 120.0, LEAD_SECONDS - 1])
def test_a_spot_notice_is_obeyed_at_once(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    heard = _Heard(monkeypatch)
    heard.say(_notice(seconds))
    assert len(heard.left) == 1
    assert heard.watchers.ours == [NODE]
    heard.noticing.look()
    assert len(heard.left) == 1


def test_maintenance_in_an_hour_is_obeyed_when_it_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _Heard(monkeypatch)
    notice = _notice(3600, Kind.MAINTENANCE)
    heard.say(notice)
    assert heard.left == heard.watchers.ours == []  # Ray's own word of the node is still news
    assert heard.cordoned == [NODE]  # the node works on, and gets nothing new
    with monkeypatch.context() as later:
        later.setattr(interruptions.time, "time", lambda: (notice.deadline or 0.0) - LEAD_SECONDS)
        heard.noticing.look()
    assert heard.left == [(NODE, notice.deadline)]


def test_a_risk_is_recorded_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _Heard(monkeypatch)
    heard.say(_notice(None, Kind.REBALANCE))
    heard.noticing.record()
    assert heard.left == []
    assert heard.cordoned == [NODE]
    assert len(heard.recorded) == 1


def test_what_the_store_could_not_be_told_it_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _Heard(monkeypatch)
    heard.away = True
    heard.say(_notice(30))
    assert len(heard.left) == 1  # obeyed all the same
    with pytest.raises(StoreTransientError):
        heard.noticing.record()
    heard.away = False
    heard.noticing.record()
    heard.noticing.record()
    assert [one.node for one in heard.recorded] == ["n"]
