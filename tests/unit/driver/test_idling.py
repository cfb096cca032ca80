"""Why ready replicas have nothing to do, and how many shard tasks there may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.driver.idling import Bound, bound_of, standby_of, why_idle
from dray.driver.slots import MOST_SLOTS
from dray.store import ShardState

pytestmark = pytest.mark.unit

DONE, HELD, OPEN, SPLIT = ShardState.DONE, ShardState.LEASED, ShardState.PENDING, ShardState.SPLIT


@pytest.mark.parametrize(
    ("states", "lanes", "told"),
    [
        ([HELD] * 4, 16, "the job has 4 shards, and each runs on one replica"),
        ([SPLIT, HELD], 2, "the job has 1 shard, and each runs on one replica"),
        ([DONE] * 9 + [HELD], 3, "1 shard left, and each runs on one replica"),
        ([DONE] * 3, 3, None),
        ([HELD, OPEN], 3, None),
    ],
)
def test_the_reason_is_the_number_of_shards(states: list[ShardState], lanes: int, told: str | None) -> None:
    assert why_idle(_shards(states), lanes=lanes, bound=None, no_place=None) == told


def test_where_shards_wait_it_is_their_tasks() -> None:
    shards = _shards([HELD, OPEN, OPEN])
    assert why_idle(shards, lanes=3, bound="memory", no_place=None) == "memory"
    assert why_idle(shards, lanes=3, bound="memory", no_place="no place") == "no place"


def _shards(states: list[ShardState]) -> list[Any]:
    return [SimpleNamespace(state=state) for state in states]


def test_what_binds_is_told_where_replicas_are_left_without_work() -> None:
    assert bound_of(lanes=4, cpus=2, memory=0, connections=None) == Bound(tasks=12)
    assert bound_of(lanes=4, cpus=14, memory=0, connections=None) == Bound(tasks=14)
    assert bound_of(lanes=4, cpus=96, memory=0, connections=None) == Bound(tasks=20)
    assert bound_of(lanes=30, cpus=0, memory=0, connections=97) == Bound(tasks=68)
    assert bound_of(lanes=60, cpus=0, memory=0, connections=97) == Bound(tasks=87)  # each has one
    found = bound_of(lanes=1000, cpus=8, memory=64 * 2**30, connections=97)
    assert found.tasks == 87
    assert found.told == (
        "PostgreSQL allows 97 connections, one for each shard task: raise its max_connections"
    )
    found = bound_of(lanes=1000, cpus=8, memory=16 * 2**30, connections=None)
    assert found.told == (
        "the memory of the stable nodes (16 GiB) holds 57 shard tasks: "
        "mark more nodes dray_stable, or larger ones"
    )


@given(
    lanes=st.integers(1, 3000),
    cpus=st.floats(0, 1000),
    memory=st.floats(0, 1e13),
    connections=st.none() | st.integers(0, 10_000),
)
def test_there_is_always_a_task_and_none_that_no_replica_could_take(
    lanes: int, cpus: float, memory: float, connections: int | None
) -> None:
    found = bound_of(lanes=lanes, cpus=cpus, memory=memory, connections=connections)
    assert 2 <= found.tasks <= MOST_SLOTS * lanes + standby_of(lanes)
    assert (found.told is not None) == (found.tasks < lanes)
