"""Which replica a shard runs on: rules that hold for every table of replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.places import place_of
from dray.scheduling import Backlog, Choice, ReplicaView, ShardView, Why, choose, nearness

pytestmark = pytest.mark.unit


@st.composite
def replicas(draw: st.DrawFn) -> list[ReplicaView]:
    """Up to six ready replicas on up to three nodes, some full, some reserved."""
    found = []
    for lane in range(draw(st.integers(0, 6))):
        name = f"job/1/replica-{lane}"
        node = draw(st.sampled_from([None, "n0", "n1", "n2"]))
        slots = draw(st.integers(1, 3))
        view = ReplicaView(
            name=name,
            place=place_of(node, name),
            slots=slots,
            load=draw(st.integers(0, slots)),
            reserved=draw(st.none() | st.integers(0, 3)),
        )
        found.append(view)
    return found


SHARDS = st.builds(
    ShardView,
    number=st.integers(0, 3),
    suspect=st.booleans(),
    died_at=st.none() | st.sampled_from(["n0 replica-0", "n1 replica-1", "n2 replica-2"]),
)
BACKLOGS = st.builds(Backlog, waiting=st.integers(0, 4), coming=st.integers(0, 4))


@given(SHARDS, replicas(), BACKLOGS)
def test_no_replica_has_more_than_its_slots_or_what_is_anothers(
    shard: ShardView, ready: list[ReplicaView], backlog: Backlog
) -> None:
    choice = choose(shard, ready, lambda: backlog)
    by_name = {one.name: one for one in ready}
    for name in {choice.replica, choice.reserve} - {None}:
        assert by_name[name or ""].reserved in (None, shard.number)
    if choice.replica is not None:
        assert by_name[choice.replica].load < by_name[choice.replica].slots
    if not shard.suspect:
        assert choice.reserve is None


@given(SHARDS, replicas(), BACKLOGS)
def test_a_suspect_has_its_replica_alone_as_far_away_as_can_be(
    shard: ShardView, ready: list[ReplicaView], backlog: Backlog
) -> None:
    choice = choose(shard, ready, lambda: backlog)
    open_ones = {one.name: one for one in ready if one.reserved in (None, shard.number)}
    if not shard.suspect or not open_ones:
        return
    assert choice.reserve is not None  # else others fill it for ever
    taken = open_ones[choice.reserve]
    assert nearness(taken.place, shard.died_at) == min(
        nearness(one.place, shard.died_at) for one in open_ones.values()
    )
    assert (choice.replica == taken.name) is (taken.load == 0)


@given(SHARDS, replicas(), BACKLOGS)
def test_a_shard_waits_only_for_a_reason(
    shard: ShardView, ready: list[ReplicaView], backlog: Backlog
) -> None:
    choice = choose(shard, ready, lambda: backlog)
    if shard.suspect or choice.replica is not None:
        return
    free = [one for one in ready if one.reserved in (None, shard.number) and one.load < one.slots]
    if free:
        assert choice.why is Why.REPLICAS_COME
        assert all(one.load for one in free)
        assert 0 < backlog.waiting <= backlog.coming
    else:
        assert choice.why is Why.ALL_TAKEN


@given(replicas(), BACKLOGS)
def test_shards_are_spread(ready: list[ReplicaView], backlog: Backlog) -> None:
    choice = choose(ShardView(number=9), ready, lambda: backlog)
    if choice.replica is not None:
        loads = [one.load for one in ready if one.reserved is None and one.load < one.slots]
        assert next(one.load for one in ready if one.name == choice.replica) == min(loads)


def test_the_backlog_is_counted_only_where_it_decides() -> None:
    """It is a count over all shards, inside the claim's transaction."""

    def never() -> Backlog:
        raise AssertionError("counted")

    idle = ReplicaView(name="a", place=None, slots=2, load=0)
    full = ReplicaView(name="b", place=None, slots=2, load=2)
    assert choose(ShardView(number=0), [idle, full], never) == Choice(replica="a", why=Why.LEAST_LOADED)
    assert choose(ShardView(number=0), [full], never).why is Why.ALL_TAKEN
    assert choose(ShardView(number=0, suspect=True), [full], never).why is Why.RESERVED
