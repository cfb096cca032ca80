"""Why ready replicas have nothing to do, and how many shard tasks there may be."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.driver.events import Event
from dray.driver.shard_tasks import idling
from dray.driver.shard_tasks.idling import Bound, IdleWatch, bound_of, feedable, standby_of, why_idle
from dray.driver.shard_tasks.slots import MOST_SLOTS
from dray.job.options.replica_range import ReplicaRange
from dray.store import ConnectionLimit, ShardState
from tests.support.clocks import replace_here

pytestmark = pytest.mark.unit

_LIMIT = ConnectionLimit(most=97, by="its max_connections")
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
    assert _why(states, lanes=lanes) == told


def test_where_shards_wait_it_is_their_tasks() -> None:
    assert _why([HELD, OPEN, OPEN], lanes=3, bound="memory") == "memory"
    assert _why([HELD, OPEN, OPEN], lanes=3, bound="memory", no_place="no place") == "no place"
    found = why_idle(
        [OPEN_SHARD], whole=3, lanes=3, bound="memory", no_place=None, no_connection="no connection left"
    )
    assert found == "no connection left"


OPEN_SHARD: Any = SimpleNamespace(state=OPEN)


def _why(
    states: list[ShardState], *, lanes: int, bound: str | None = None, no_place: str | None = None
) -> str | None:
    left: Any = [SimpleNamespace(state=state) for state in states if state in (HELD, OPEN)]
    whole = sum(state is not SPLIT for state in states)
    return why_idle(left, whole=whole, lanes=lanes, bound=bound, no_place=no_place)


def test_a_look_at_many_shards_reads_open_ones_and_has_a_pause_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 61,000 shards that were done was read every five seconds: a quarter of the driver's time."""
    now, looks, told = [1000.0], list[bool](), list[Event]()
    replace_here(monkeypatch, time, "monotonic", lambda: now[0])

    def read(job_id: str, *, open_only: bool = False) -> list[Any]:
        now[0] += 1.0
        looks.append(open_only)
        return [SimpleNamespace(state=HELD)]

    store: Any = SimpleNamespace(shards=read, whole_shards=lambda _: 61_000)
    pool: Any = SimpleNamespace(lanes=2, idle=lambda _: [object()], note=lambda *_: None)
    fleet: Any = SimpleNamespace(no_place_for_tasks=lambda: None)
    watch = IdleWatch("job", pool, fleet, Bound(tasks=2), told.append, 5.0)
    for _ in range(8):
        watch.look(store)
        now[0] += 5.0
    assert looks == [True, True]
    [event] = told
    assert event.text == "1 of 2 replicas have no work: 1 shard left, and each runs on one replica"


def test_what_binds_is_told_where_replicas_are_left_without_work() -> None:
    assert bound_of(lanes=4, cpus=2, memory=0, connections=None) == Bound(tasks=12)
    assert bound_of(lanes=4, cpus=14, memory=0, connections=None) == Bound(tasks=14)
    assert bound_of(lanes=4, cpus=96, memory=0, connections=None) == Bound(tasks=20)
    assert bound_of(lanes=30, cpus=0, memory=0, connections=_LIMIT) == Bound(tasks=68)
    assert bound_of(lanes=60, cpus=0, memory=0, connections=_LIMIT) == Bound(tasks=87)  # each has one
    found = bound_of(lanes=1000, cpus=8, memory=64 * 2**30, connections=_LIMIT)
    assert found.tasks == 87
    assert found.told == (
        "PostgreSQL allows 97 connections, one for each shard task: raise its max_connections"
    )
    limit = ConnectionLimit(most=25, by="the CONNECTION LIMIT of the role", others=15)
    assert bound_of(lanes=40, cpus=8, memory=0, connections=limit).told == (
        "PostgreSQL allows 25 connections beside 15 of other programs, one for each shard task: "
        "raise the CONNECTION LIMIT of the role"
    )
    found = bound_of(lanes=1000, cpus=8, memory=16 * 2**30, connections=None)
    assert found.told == (
        "the memory of the stable nodes (16 GiB) holds 42 shard tasks: "
        "mark more nodes dray_stable, or larger ones"
    )


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(1, 128, 13), (20, 128, 20), (1, 8, 8), (128, 128, 128)]
)
def test_a_job_grows_no_further_than_its_shard_tasks_can_feed(
    monkeypatch: pytest.MonkeyPatch, least: int, most: int, expected: int
) -> None:
    """More replicas would be paid for and idle: 13 shard tasks have a connection."""
    store: Any = SimpleNamespace(most_connections=lambda: ConnectionLimit(most=23, by="its max_connections"))
    monkeypatch.setattr(idling, "reopen", lambda _: nullcontext(store))
    job: Any = SimpleNamespace(settings=SimpleNamespace(store_url="postgresql://"))
    cluster: Any = SimpleNamespace(nodes=())
    told: list[Event] = []
    assert feedable(job, ReplicaRange(least, most), cluster, told.append) == ReplicaRange(least, expected)
    assert ["PostgreSQL allows 23 connections" in (one.text or "") for one in told] == [True] * (
        most == 128 and least < most
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
    limit = None if connections is None else ConnectionLimit(most=connections, by="its max_connections")
    found = bound_of(lanes=lanes, cpus=cpus, memory=memory, connections=limit)
    assert 2 <= found.tasks <= MOST_SLOTS * lanes + standby_of(lanes)
    assert (found.told is not None) == (found.tasks < lanes)
