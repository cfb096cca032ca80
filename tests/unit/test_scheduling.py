"""Which replica a shard runs on: rules that hold for every table of replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.places import place_of
from dray.scheduling import (
    Backlog,
    Choice,
    Ready,
    ReplicaView,
    ShardView,
    Start,
    Why,
    choose,
    in_line,
    nearness,
    starts,
    views,
)

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


@pytest.mark.parametrize(
    ("place", "other", "near"),
    [
        ("n0 replica-0", "n1 replica-0", 0),
        ("n0 replica-0", "n0 replica-1", 1),
        ("n0 replica-0", "n0 replica-0", 2),
        (None, "n0 replica-0", 0),
        ("n0 replica-0", None, 0),
        ("n0+n1 replica-0", "n2+n3 replica-0", 0),
        ("n0+n1 replica-0", "n1+n2 replica-0", 1),  # the shared node may be at fault
        ("n0+n1 replica-0", "n1 replica-0", 1),
        ("n0+n1 replica-0", "n1+n0 replica-1", 1),
        ("n0+n1 replica-0", "n1+n0 replica-0", 2),
    ],
)
def test_the_same_place_is_nearer_than_another_one_of_its_node(
    place: str | None, other: str | None, near: int
) -> None:
    assert nearness(place, other) == near


def _replica(name: str, load: int, *, node: str = "n0", **changes: Any) -> ReplicaView:
    return ReplicaView(name=name, place=place_of(node, name), slots=2, load=load, **changes)


@pytest.mark.parametrize(
    ("waiting", "coming", "waits"), [(1, 1, True), (2, 3, True), (3, 2, False), (1, 0, False), (0, 1, False)]
)
def test_the_last_shards_wait_for_replicas_that_are_being_started(
    waiting: int, coming: int, waits: bool
) -> None:
    """One of two slots is free: the shard would run at half the speed there, and a replica stand idle."""
    backlog = Backlog(waiting=waiting, coming=coming)
    choice = choose(ShardView(number=0), [_replica("a", 1)], lambda: backlog)
    assert (choice.replica, choice.why is Why.REPLICAS_COME) == (None if waits else "a", waits)
    assert choose(ShardView(number=0), [_replica("a", 0)], lambda: backlog).replica == "a"


def test_a_suspect_keeps_its_replica_unless_another_is_farther_from_where_it_died() -> None:
    suspect = ShardView(number=7, suspect=True, died_at="n1 replica-0")
    kept, idle = _replica("b", 1, reserved=7), _replica("a", 0)
    assert choose(suspect, [idle, kept], _no_backlog) == Choice(replica=None, why=Why.RESERVED, reserve="b")
    near = _replica("b", 0, node="n1", reserved=7)
    assert choose(suspect, [idle, near], _no_backlog) == Choice(replica="a", why=Why.ALONE, reserve="a")


def _no_backlog() -> Backlog:
    return Backlog(waiting=0, coming=0)


def test_the_load_of_a_replica_is_what_is_leased_there() -> None:
    known = [Ready("a", "n0", 3, 7, 5), Ready("b", None, 2, 8, 0), Ready("c", "n0", 2, None, 0)]
    leased = [("a", 6, 2), ("b", 0, 1), ("a", 0, 1), (None, 9, 1)]
    assert views(known, leased=leased, suspects={8}) == [
        ReplicaView(name="a", place=place_of("n0", "a"), slots=3, load=3, families=frozenset({5, 6})),
        ReplicaView(name="b", place=None, slots=2, load=1, reserved=8),
        ReplicaView(name="c", place=place_of("n0", "c"), slots=2, load=0),
    ]


@dataclass(frozen=True)
class Queue:
    """What ``starts`` is asked: no shard is in it twice."""

    waiting: list[ShardView]
    asking: list[ShardView]
    ready: list[ReplicaView]
    coming: int
    ahead: int
    room: int

    @property
    def awaited(self) -> set[int]:
        """The suspects that a replica is kept free for, as the driver reads it in the store."""
        return {one.reserved for one in self.ready if one.reserved is not None}

    def starts(self) -> list[Start]:
        return starts(
            self.waiting, self.asking, self.ready, coming=self.coming, ahead=self.ahead, room=self.room
        )


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    """Up to twelve shards, some of whose tasks run. A suspect has one replica reserved at most."""
    shards = [
        ShardView(number=number, suspect=draw(st.booleans()), died_at=draw(st.sampled_from(PLACES)))
        for number in draw(st.permutations(range(draw(st.integers(0, 12)))))
    ]
    cut = draw(st.integers(0, len(shards)))
    suspects = [one.number for one in shards if one.suspect]
    ready = []
    for one in draw(replicas()):
        kept = draw(st.sampled_from([None, *suspects]))
        ready.append(replace(one, reserved=kept))
        suspects = [number for number in suspects if number != kept]
    return Queue(
        waiting=shards[:cut],
        asking=shards[cut:],
        ready=ready,
        coming=draw(st.integers(0, 4)),
        ahead=draw(st.integers(0, 4)),
        room=draw(st.integers(-2, 12)),
    )


PLACES = [None, "n0 replica-0", "n1 replica-1", "n2 replica-2"]


class Given:
    """The places of a queue's replicas, given out one by one, as the claims of the shards would."""

    def __init__(self, queue: Queue) -> None:
        self.ready = {one.name: one for one in queue.ready}
        self.backlog = Backlog(waiting=len(queue.waiting) + len(queue.asking), coming=queue.coming)

    def claim(self, shard: ShardView) -> Choice:
        choice = choose(shard, list(self.ready.values()), lambda: self.backlog)
        if choice.reserve is not None:
            self.ready[choice.reserve] = replace(self.ready[choice.reserve], reserved=shard.number)
        if choice.replica is not None:
            taken = self.ready[choice.replica]
            self.ready[taken.name] = replace(taken, load=taken.load + 1)
            self.backlog = replace(self.backlog, waiting=self.backlog.waiting - 1)
        return choice


@given(queues())
def test_no_shard_is_started_twice_nor_one_that_does_not_wait(queue: Queue) -> None:
    numbers = [one.number for one in queue.starts()]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) <= {one.number for one in queue.waiting}


@given(queues())
def test_there_is_room_for_what_starts_besides_the_suspects_that_others_may_wait_for(queue: Queue) -> None:
    others = [one for one in queue.starts() if one.number not in queue.awaited]
    assert len(others) <= max(queue.room, 0)


@given(queues())
def test_suspects_that_a_replica_is_kept_free_for_come_first_and_all_of_them(queue: Queue) -> None:
    awaited = [one.number for one in queue.waiting if one.number in queue.awaited]
    assert [one.number for one in queue.starts()][: len(awaited)] == awaited


@given(queues())
def test_what_starts_is_started_in_the_order_of_the_queue(queue: Queue) -> None:
    """None that waits is overtaken, but a suspect for which there is no place by one that has its own."""
    order = [one.number for one in queue.waiting if one.number not in queue.awaited]
    suspects = {one.number for one in queue.waiting if one.suspect}
    others = [one.number for one in queue.starts() if one.number not in queue.awaited]
    assert others == [number for number in order if number in others]
    if others:
        overtaken = set(order[: order.index(others[-1])]) - set(others)
        assert overtaken <= suspects


@given(queues())
def test_a_few_tasks_at_most_start_without_a_place(queue: Queue) -> None:
    given_out = Given(queue)
    in_vain = sum(given_out.claim(shard).replica is None for shard in queue.asking)
    ahead = [one for one in queue.starts() if one.why is Why.EARLY and one.number not in queue.awaited]
    assert len(ahead) <= max(queue.ahead - in_vain, 0)


@given(queues())
def test_each_start_is_given_its_place_when_all_claim_in_this_order(queue: Queue) -> None:
    given_out = Given(queue)
    for shard in queue.asking:
        given_out.claim(shard)
    why = {one.number: one.why for one in queue.starts()}
    for shard in sorted(queue.waiting, key=lambda one: one.number not in queue.awaited):
        if shard.number not in why and not shard.suspect:
            break  # nothing behind it starts
        choice = given_out.claim(shard)
        if shard.number in why and why[shard.number] is not Why.EARLY:
            assert choice.replica is not None
            assert choice.why is why[shard.number]
        elif shard.number in why:
            assert choice.replica is None


def unasked(queue: Queue) -> Queue:
    """The same with room, where no task runs yet and no replica is reserved."""
    ready = [replace(one, reserved=None) for one in queue.ready]
    waiting = [*queue.waiting, *queue.asking]
    return replace(queue, waiting=waiting, asking=[], ready=ready, room=max(queue.room, 1))


@given(queues().map(unasked))
def test_a_place_is_left_free_only_for_want_of_room_or_of_an_early_task(queue: Queue) -> None:
    """With room, the first shard of the queue that has a place is started."""
    if not queue.waiting:
        return
    first = queue.waiting[0]
    placed = Given(queue).claim(first).replica is not None
    numbers = [one.number for one in queue.starts()]
    assert (first.number in numbers) is (placed or queue.ahead > 0)


@given(SHARDS, replicas(), st.lists(st.sets(st.integers(1, 3)), min_size=6, max_size=6), st.integers(0, 3))
def test_no_replica_is_left_less_loaded_for_the_sake_of_a_prefix(
    shard: ShardView, ready: list[ReplicaView], families: list[set[int]], family: int
) -> None:
    """Of equally loaded ones, one that has the prefix is taken."""
    if shard.suspect:
        return
    backlog = Backlog(waiting=9, coming=0)
    knowing = [replace(one, families=frozenset(known)) for one, known in zip(ready, families, strict=False)]
    plain = choose(shard, ready, lambda: backlog).replica
    found = choose(replace(shard, family=family), knowing, lambda: backlog)
    by_name = {one.name: one for one in knowing}
    assert (plain is None) is (found.replica is None)
    if plain is None or found.replica is None:
        return
    assert by_name[found.replica].load == by_name[plain].load
    alike = [
        one
        for one in knowing
        if one.load == by_name[plain].load < one.slots and one.reserved in (None, shard.number)
    ]
    known = any(family in one.families for one in alike)
    assert (found.why is Why.FAMILY) is (family in by_name[found.replica].families) is known


def test_a_free_place_goes_to_a_shard_whose_prefix_is_there_if_it_is_near_in_line() -> None:
    waiting = [ShardView(number=number, family=1 + number // 5) for number in range(20)]
    full = ReplicaView(name="full", place=None, slots=1, load=1, families=frozenset({4}))
    free = ReplicaView(name="free", place=None, slots=1, load=0, families=frozenset({2, 4}))
    assert [one.number for one in in_line(waiting, [full, free])][:6] == [5, 6, 7, 0, 1, 2]  # 8 are near
    assert in_line(waiting, [full]) == waiting
    suspect = replace(waiting[0], suspect=True)
    assert in_line([suspect, *waiting[1:]], [free, full])[0] is suspect
    begun = starts(waiting, [], [full, free], coming=0, ahead=0, room=9)
    assert begun == [Start(number=5, why=Why.FAMILY)]
