"""Leases that are over: which of them say that a task stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.driver.shard_tasks.lapsed import LapsedLeases
from dray.store import JobLease, ReplicaRow, ReplicaState, ShardState, Store, open_store
from tests.support.stores import FakeClock, claimed, ready_job

pytestmark = pytest.mark.unit


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db"), clock=clock) as opened:
        yield opened


@pytest.fixture
def lease(store: Store) -> JobLease:
    return ready_job(store)


def test_a_lease_that_stays_over_is_told_after_the_drivers_own_seconds(
    store: Store, lease: JobLease, clock: FakeClock
) -> None:
    own = 0.0
    lapsed = LapsedLeases(90.0, lambda: own)
    held = claimed(store, lease)
    assert not lapsed.look(store.shards("job"), clock.time)
    clock.pass_seconds(held.ttl + 1000.0)  # the database's clock was set forward
    assert not lapsed.look(store.shards("job"), clock.time)
    own = 89.0
    assert not lapsed.look(store.shards("job"), clock.time)
    own = 91.0
    assert lapsed.look(store.shards("job"), clock.time) == {0}


def test_a_lease_that_is_renewed_was_well(store: Store, lease: JobLease, clock: FakeClock) -> None:
    own = 0.0
    lapsed = LapsedLeases(90.0, lambda: own)
    held = claimed(store, lease)
    clock.pass_seconds(held.ttl + 1)
    lapsed.look(store.shards("job"), clock.time)
    store.renew_shard(held)  # late, and nobody else took it
    own = 50.0
    clock.pass_seconds(held.ttl + 1)  # once more
    lapsed.look(store.shards("job"), clock.time)
    own = 91.0
    assert not lapsed.look(store.shards("job"), clock.time)
    own = 141.0
    assert lapsed.look(store.shards("job"), clock.time) == {0}


@pytest.mark.parametrize("number", [0, None])
def test_a_new_task_and_a_store_that_was_away_begin_anew(
    store: Store, lease: JobLease, clock: FakeClock, number: int | None
) -> None:
    own = 0.0
    lapsed = LapsedLeases(90.0, lambda: own)
    clock.pass_seconds(claimed(store, lease).ttl + 1)
    lapsed.look(store.shards("job"), clock.time)
    own = 80.0
    lapsed.forget(number)
    own = 91.0
    assert not lapsed.look(store.shards("job"), clock.time)
    own = 182.0
    assert lapsed.look(store.shards("job"), clock.time) == {0}


def test_a_shard_that_waits_for_a_replica_keeps_no_lease_that_is_over(
    store: Store, lease: JobLease, clock: FakeClock
) -> None:
    """Its task is well, and would be given up for the lease of an attempt that is over."""
    row = ReplicaRow(name="a", lane=0, state=ReplicaState.STARTING, slots=2, node="n", max_num_seqs=4)
    store.put_replicas(lease, [row])
    held = claimed(store, lease)
    assert store.place_shard(lease, held.number, owner="other").lease is None
    assert store.shards("job")[0].state is ShardState.LEASED  # it lives
    clock.pass_seconds(held.ttl + 1)
    assert store.place_shard(lease, held.number, owner="other").waiting
    shard = store.shards("job")[0]
    assert (shard.state, shard.lease_until, shard.interruptions) == (ShardState.PENDING, None, 1)
    assert [one.cause for one in store.attempts("job")] == ["LEASE_EXPIRED"]
    assert store.place_shard(lease, held.number, owner="other").waiting
    assert store.shards("job")[0].interruptions == 1
