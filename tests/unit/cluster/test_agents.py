"""Which nodes have an agent that fetches the model, as nodes come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster import agents
from dray.cluster.agents import NodeAgents
from dray.cluster.base import Node
from dray.weights.source.manifest import Manifest

pytestmark = pytest.mark.unit


class Cluster:
    """The nodes that live, and what their agents were told to drop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[Node] = []
        self.dropped: list[tuple[str, str, bool]] = []
        self.sent: list[Manifest] = []
        self.held: list[int] = []  # what each call was given: the number of what was sent
        self.leaving: set[str] = set()
        monkeypatch.setattr(agents, "live_nodes", lambda: (tuple(self.nodes), ""))
        monkeypatch.setattr(agents, "leaving", lambda: self.leaving)
        monkeypatch.setattr(agents, "_agent_on", self._agent_on)
        self.dead: set[str] = set()  # nodes whose agent Ray calls dead
        self.begun: list[str] = []  # nodes that got an agent
        monkeypatch.setattr(agents, "_results", lambda calls: ({}, self.dead & calls.keys()))
        monkeypatch.setattr(agents, "_put", self._put)
        self._held = NodeAgents(Manifest(uri="s3://b/m", files=()), None, "job")

    def looked_at(self, *nodes: Node) -> int:
        """How many nodes are to have the model while these live."""
        self.nodes = list(nodes)
        self._held.look()
        return self._held.count

    def _put(self, manifest: Manifest) -> int:
        self.sent.append(manifest)
        return len(self.sent)

    def _agent_on(self, node_id: str) -> Any:
        self.begun.append(node_id)

        def drop(holder: str, remove: bool) -> None:
            self.dropped.append((node_id, holder, remove))

        remote = SimpleNamespace(remote=lambda *given: None)
        hold = SimpleNamespace(remote=lambda manifest, *given: self.held.append(manifest))
        return SimpleNamespace(hold=hold, peer=remote, meet=remote, drop=SimpleNamespace(remote=drop))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def _node(name: str, *, cpus: float = 0.0, gpus: float = 0.0) -> Node:
    return Node(node_id=name, host=name, cpus=cpus, gpus=gpus, stable=False)


HEAD, DRIVER = _node("head"), _node("driver")  # a rented head, and the driver's own machine


def test_while_no_worker_lives_no_node_fetches_the_model(cluster: Cluster) -> None:
    assert cluster.looked_at(HEAD, DRIVER) == 0
    assert cluster.looked_at(HEAD, DRIVER, _node("worker", cpus=4)) == 1
    assert cluster.looked_at(HEAD, DRIVER) == 0
    assert cluster.dropped == []  # a node that is gone is told nothing


def test_where_a_node_has_gpus_those_without_let_the_model_go(cluster: Cluster) -> None:
    cpus, gpus = _node("cpus", cpus=4), _node("gpus", cpus=4, gpus=1)
    assert cluster.looked_at(HEAD, cpus) == 1
    assert cluster.looked_at(HEAD, cpus, gpus) == 1
    assert cluster.dropped == [("cpus", "job", False)]
    assert cluster.looked_at(HEAD, cpus, gpus) == 1
    assert cluster.looked_at(HEAD, cpus) == 1  # it begins again
    assert cluster.dropped == [("cpus", "job", False)]


def test_a_node_that_is_being_drained_keeps_its_agent_and_gets_none(cluster: Cluster) -> None:
    """Ray would start none there, and each look would wait for it."""
    one, two = _node("one", cpus=4), _node("two", cpus=4)
    cluster.leaving = {"two"}
    assert cluster.looked_at(one, two) == 1
    cluster.leaving = {"one"}
    assert cluster.looked_at(one, two) == 2
    assert cluster.dropped == []


def test_the_manifest_is_sent_once_however_often_the_nodes_are_asked(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.looked_at(_node("one", cpus=4), _node("two", cpus=4))
    assert len(cluster.sent) == 1
    assert cluster.held == [1] * 6


def test_an_agent_that_ended_itself_is_replaced_in_the_next_look(cluster: Cluster) -> None:
    """Agents do so while their driver stands still: its handles were those of dead agents then."""
    one, two = _node("one", cpus=4), _node("two", cpus=4)
    cluster.looked_at(one, two)
    cluster.dead = {"two"}
    assert cluster.looked_at(one, two) == 2
    cluster.dead = set()
    assert cluster.looked_at(one, two) == 2
    assert cluster.looked_at(one, two) == 2
    assert cluster.begun == ["one", "two", "two"]


def test_where_a_node_is_being_drained_an_agent_that_ended_itself_has_no_successor(cluster: Cluster) -> None:
    one, two = _node("one", cpus=4), _node("two", cpus=4)
    cluster.looked_at(one, two)
    cluster.dead, cluster.leaving = {"two"}, {"two"}
    cluster.looked_at(one, two)
    assert cluster.looked_at(one, two) == 1
    assert cluster.begun == ["one", "two"]
