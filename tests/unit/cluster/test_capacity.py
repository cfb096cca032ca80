"""Whether a node has room for a replica now: a part of a GPU is of one GPU, and several are whole ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dray.cluster import capacity
from dray.cluster.asking import ReplicaResources
from dray.cluster.base import Node
from dray.cluster.capacity import Capacity, Room, capacity_now

pytestmark = pytest.mark.unit

PARTS = st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.3333, 0.4, 0.5, 0.6, 0.75, 0.9])


def room(taken: list[float]) -> Room:
    """A node with a GPU for each of these, of which so much is taken. Ray counts in ten thousandths."""
    free = round(sum(1 - one for one in taken), 4)
    return Room(cpus=64, gpus=len(taken), free_cpus=64, free_gpus=free)


def takes(taken: list[float], each: float) -> bool:
    return room(taken).takes(ReplicaResources(cpus=1, gpus=each))


def most_on(each: float) -> int:
    return math.floor(1 / each + 1e-6)


REPLICAS = PARTS.flatmap(
    lambda each: st.tuples(st.just(each), st.lists(st.integers(0, most_on(each)), min_size=1, max_size=8))
)
"""A size, and how many replicas of it are on each GPU."""


@given(REPLICAS)
@example((0.4, [2, 2]))
@example((0.3, [3, 3, 3, 3]))
@example((0.3333, [3, 2, 3]))
def test_beside_replicas_of_its_size_the_answer_is_exact(on: tuple[float, list[int]]) -> None:
    """However they came and went: those on a GPU leave room on it, or they do not."""
    each, counts = on
    assert takes([count * each for count in counts], each) == any(one < most_on(each) for one in counts)


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1.0, 0.25, 0.5, 0.999]), min_size=1, max_size=8), st.integers(1, 8)
)
def test_several_gpus_are_whole_ones(taken: list[float], each: int) -> None:
    """What is free for certain is taken; and never more than could be whole."""
    found = takes(taken, each)
    assert found or taken.count(0.0) < each
    assert not found or sum(1 - one for one in taken) >= each - 1e-3


@given(st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=8), PARTS)
def test_no_part_is_more_than_is_free(taken: list[float], each: float) -> None:
    assert not takes(taken, each) or sum(1 - one for one in taken) >= each - 1e-3


@pytest.mark.parametrize(
    ("taken", "each", "expected"),
    [
        ([0.75, 0.75], 0.25, True),
        ([0.8, 0.8], 0.4, False),  # two replicas on each, 0.2 of each is left
        ([0.6, 0.6], 0.6, False),
        ([0.5, 0.5], 1, True),  # Ray tells the sum alone: one of two may be free
        ([0.5, 0.6], 1, False),
        ([0.5, 0.5, 0.5], 2, False),
        ([0.3], 0.6, True),
        ([0.5], 0.6, False),
        ([], 0, True),
    ],
)
def test_places_on_a_node(taken: list[float], each: float, expected: bool) -> None:
    assert takes(taken, each) is expected
    pair = tuple(Node(node_id=one, host=one, cpus=64, gpus=0, stable=False) for one in ("a", "b"))
    nodes = Capacity(nodes=pair, rooms=(room(taken), room([1.0, 1.0])))
    assert nodes.takes(ReplicaResources(cpus=1, gpus=each)) is expected
    assert not nodes.takes(ReplicaResources(cpus=1, gpus=each or 1, nodes=2))


def test_a_node_that_is_drained_is_there_and_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no machine that went: its price counts on, and what runs there."""
    nodes = tuple(Node(node_id=one, host=one, cpus=4, gpus=0, stable=False) for one in ("a", "b"))
    monkeypatch.setattr(capacity, "live_nodes", lambda: (nodes, ""))
    monkeypatch.setattr(capacity, "free_resources", lambda: {"a": {"CPU": 4.0}, "b": {"CPU": 1.0}})
    monkeypatch.setattr(capacity, "refused_by_autoscaler", list)
    monkeypatch.setattr(capacity, "draining", lambda: {"a": 0.0})
    found, four = capacity_now(), ReplicaResources(cpus=4)
    assert [(one.node_id, one.draining) for one in found.nodes] == [("a", True), ("b", False)]
    assert (found.takes(four), found.takes(ReplicaResources(cpus=1))) == (False, True)
    assert (found.holds(four), found.holds(replace(four, nodes=2)), found.drained(four)) == (True, False, 1)
    assert found.taken(ReplicaResources(cpus=1)) == 3
    assert not found.without({"b"}).holds(four)
