"""Which notices are news: of the nodes, and of Ray, but not of our own drains."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from dray.cluster import watching
from dray.cluster.base import Node
from dray.cluster.watching import Heard, NodeWatch, NodeWatchers
from dray.notices import Notice, NoticeKind

pytestmark = pytest.mark.unit

NODE = Node(node_id="n", host="h", cpus=1, gpus=0, stable=False)


def _notice(kind: NoticeKind) -> Notice:
    return Notice(source="aws", kind=kind, action="a", deadline=None, seen_at=0.0, id=str(kind))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> dict[str, Heard]:
    said: dict[str, Heard] = {"n": Heard([], [])}
    monkeypatch.setattr(watching, "live_nodes", lambda: ([NODE], ""))
    monkeypatch.setattr(watching, "draining", dict)
    monkeypatch.setattr(watching, "_watch_on", lambda node_id: object())
    monkeypatch.setattr(NodeWatchers, "_ask", lambda self: said)
    return said


def test_a_notice_is_news_once(heard: dict[str, Heard]) -> None:
    watchers = NodeWatchers()
    heard["n"] = Heard([_notice(NoticeKind.INTERRUPTION)], [])
    assert [notice.kind for _, notice in watchers.look({"n"})] == [NoticeKind.INTERRUPTION]
    assert watchers.look({"n"}) == []


def test_a_notice_that_was_withdrawn_is_news_when_it_comes_again(
    heard: dict[str, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a taint without a time in its id: Kubernetes writes one for NoExecute alone."""
    monkeypatch.setattr(NodeWatch, "_start", lambda self: None)
    watch, watchers = NodeWatch(), NodeWatchers()
    for _ in range(3):
        watch._take(_notice(NoticeKind.INTERRUPTION))
        heard["n"] = watch.heard()
        [(node, notice)] = watchers.look({"n"})
        assert (node, notice.kind) == (NODE, NoticeKind.INTERRUPTION)
        assert watchers.look({"n"}) == []


@pytest.mark.parametrize("ahead", [-600.0, 0.0, 600.0])
def test_a_deadline_is_by_the_drivers_clock(heard: dict[str, Heard], ahead: float) -> None:
    """The node's clock is ten minutes off, as one's may be that has just booted: two minutes are left."""
    node_time = time.time() + ahead
    notice = replace(_notice(NoticeKind.INTERRUPTION), deadline=node_time + 120)
    heard["n"] = Heard([notice], [], node_time)
    [(_, found)] = NodeWatchers().look({"n"})
    assert found.seconds_left(time.time()) == pytest.approx(120, abs=10)


def test_rays_own_drain_is_news_after_a_mere_recommendation(
    heard: dict[str, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    watchers = NodeWatchers()
    heard["n"] = Heard([_notice(NoticeKind.REBALANCE)], [])
    assert [notice.kind for _, notice in watchers.look({"n"})] == [NoticeKind.REBALANCE]
    monkeypatch.setattr(watching, "draining", lambda: {"n": 5.0})
    [(node, notice)] = watchers.look({"n"})
    assert (node, notice.source, notice.deadline) == (NODE, "ray", 5.0)
    assert notice.ends_node


def test_our_own_drain_is_no_news(heard: dict[str, Heard], monkeypatch: pytest.MonkeyPatch) -> None:
    watchers = NodeWatchers()
    watchers.drained(NODE)
    monkeypatch.setattr(watching, "draining", lambda: {"n": 5.0})
    assert watchers.look({"n"}) == []


def test_a_node_without_replicas_is_left_alone(
    heard: dict[str, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher is a process: an autoscaler ends no node on which one runs."""
    ended: list[object] = []
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: ended.append(actor))
    watchers = NodeWatchers()
    assert watchers.look({"n"}) == []
    [watcher] = watchers._actors.values()
    heard["n"] = Heard([_notice(NoticeKind.INTERRUPTION)], [])
    monkeypatch.setattr(NodeWatchers, "_ask", lambda self: {k: heard[k] for k in self._actors})
    assert watchers.look(set()) == []
    assert ended == [watcher] and not watchers._actors


def test_what_goes_wrong_at_a_source_is_told_once(heard: dict[str, Heard]) -> None:
    watchers = NodeWatchers()
    heard["n"] = Heard([], ["kubernetes notices: GET /api/v1: not allowed"])
    watchers.look({"n"})
    assert watchers.take_told() == ["node h: kubernetes notices: GET /api/v1: not allowed"]
    heard["n"] = Heard([], [])
    watchers.look({"n"})
    assert watchers.take_told() == []
