"""Contract: which replica a shard is given to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import pytest

from dray.driver.shard_tasks.views import replica_views
from dray.errors import FencedError
from dray.scheduling import Backlog, ShardView, choose
from dray.store import (
    Claim,
    JobLease,
    ReplicaRow,
    ReplicaState,
    Shard,
    ShardLease,
    ShardState,
    Store,
    StoredNotice,
)
from tests.support.stores import FINGERPRINT, FakeClock, outcomes, ready_job, specs

pytestmark = pytest.mark.integration

_SHARDS, _TTL = 9, 90.0
_JOBS = count()


def _ready(name: str, slots: int = 2, state: ReplicaState = ReplicaState.READY) -> ReplicaRow:
    return ReplicaRow(name=name, lane=0, state=state, slots=slots, node="n", max_num_seqs=4)


def test_shards_go_to_the_replica_with_the_most_room(store: Store) -> None:
    job = ready_job(store, shards=6)
    assert store.place_shard(job, 0, owner="w").waiting  # there is none
    store.put_replicas(job, [_ready("a"), _ready("b"), _ready("c", state=ReplicaState.LEAVING)])
    placed = [store.place_shard(job, number, owner=f"w{number}") for number in range(5)]
    assert [claim.lease.replica if claim.lease else None for claim in placed] == ["a", "b", "a", "b", None]
    assert placed[4].waiting
    assert store.place_shard(job, 0, owner="other") == Claim(lease=None)  # held
    store.replica_gone("job", "a")
    assert placed[1].lease is not None
    store.release_shard(placed[1].lease, cause="SPOT")
    again = store.place_shard(job, 5, owner="w5").lease
    assert again is not None
    assert again.replica == "b"
    store.claim_job("job", "driver")  # a new driver starts replicas of its own
    assert store.replicas("job") == []


def test_the_last_shards_wait_for_replicas_that_start(store: Store) -> None:
    job = ready_job(store, shards=5)
    coming = replace(_ready("b", state=ReplicaState.STARTING), lane=1)
    store.put_replicas(job, [_ready("a", slots=3), coming])
    for number in range(3):  # as long as more wait than are coming
        assert store.place_shard(job, number, owner=f"w{number}").lease is not None
    store.put_replicas(job, [_ready("a", slots=9)])
    assert store.place_shard(job, 3, owner="w3").lease is not None
    assert store.place_shard(job, 4, owner="w4").waiting  # the last one
    store.put_replicas(job, [replace(coming, state=ReplicaState.READY)])
    last = store.place_shard(job, 4, owner="w4").lease
    assert last is not None
    assert last.replica == "b"


def test_a_shard_does_not_wait_for_others_where_a_replica_is_idle(store: Store) -> None:
    job = ready_job(store, shards=1)
    gone = replace(_ready("b", state=ReplicaState.GONE), lane=1)
    store.put_replicas(job, [_ready("a"), gone])
    assert store.place_shard(job, 0, owner="w").lease is not None


def test_nobody_waits_for_a_replica_that_is_retired(store: Store) -> None:
    """The job needs it no more: nothing comes in its place, and a shard task that lost it changes nothing."""
    job = ready_job(store, shards=2)
    retired = replace(_ready("b", state=ReplicaState.RETIRED), lane=1)
    store.put_replicas(job, [_ready("a", slots=3), retired])
    store.replica_gone("job", "b")
    assert [row.state for row in store.replicas("job")] == [ReplicaState.READY, ReplicaState.RETIRED]
    for number in range(2):
        lease = store.place_shard(job, number, owner=f"w{number}").lease
        assert lease is not None and lease.replica == "a"


def test_shards_whose_leases_lapsed_are_had_like_those_that_wait(store: Store, clock: FakeClock) -> None:
    """As after the death of a driver: nobody has them, though none is pending."""
    job = ready_job(store, shards=3)
    for number in range(3):
        assert store.claim_shard(job, number, owner="dead", ttl=10) is not None
    clock.pass_seconds(10)
    coming = replace(_ready("b", state=ReplicaState.STARTING), lane=1)
    store.put_replicas(job, [_ready("a", slots=3), coming])
    for number in range(2):
        assert store.place_shard(job, number, owner=f"w{number}").lease is not None
    assert store.place_shard(job, 2, owner="w2").waiting  # for the replica that starts
    store.put_replicas(job, [replace(coming, lane=0)])
    assert store.place_shard(job, 2, owner="w2").lease is not None  # every lane has one


def test_of_equally_loaded_replicas_one_has_the_prefix_of_the_shard(store: Store) -> None:
    """The last one that it had, also when the shard is done; parts of a split shard keep theirs."""
    store.create_job("job", fingerprint=FINGERPRINT, settings={})
    job = store.claim_job("job", "driver")
    families = [7, 2**62 + 1, 7, 2**62 + 1, 0, 7]
    cut = [replace(spec, family=family) for spec, family in zip(specs(6, 2), families, strict=True)]
    store.add_shards(job, cut, total_rows=12)
    assert [shard.family for shard in store.shards("job")] == families
    store.put_replicas(job, [_ready("a"), _ready("b")])
    first, second = _placed(store, job, 0), _placed(store, job, 1)
    assert (first.replica, second.replica) == ("a", "b")
    assert _placed(store, job, 3).replica == "b"
    assert _placed(store, job, 4).replica == "a"  # which has fewer: no replica idles for a prefix
    store.commit(first, outcomes([0, 1]))
    store.finish_shard(first)
    store.put_replicas(job, [_ready("a"), _ready("b"), _ready("c")])  # the driver tells of changes again
    assert {row.name: row.family for row in store.replicas("job")} == {"a": 7, "b": 2**62 + 1, "c": 0}
    assert _placed(store, job, 2).replica == "c"
    third = _placed(store, job, 5)
    assert third.replica == "a"  # "c" has one, too, and the same prefix: by name
    whole = next(shard for shard in store.shards("job") if shard.number == 5)
    part = replace(cut[5], number=-1, rows=1, length=1)
    rest = replace(part, offset=part.offset + 1, first_position=part.first_position + 1)
    assert {one.family for one in store.split_shard(third, [part, rest], cause="POISON")} == {whole.family}


def test_a_suspect_waits_for_a_replica_to_itself_and_nobody_joins_it(store: Store) -> None:
    job = ready_job(store, shards=4)
    store.put_replicas(job, [_ready("a")])
    suspect, other = (store.place_shard(job, number, owner=f"w{number}").lease for number in (0, 1))
    assert suspect is not None
    assert other is not None
    store.release_shard(suspect, cause="ENGINE_CRASH", suspect=True)
    assert store.place_shard(job, 0, owner="w0").waiting  # the other is there still
    assert store.place_shard(job, 2, owner="w2").waiting  # and no more come
    store.commit(other, outcomes([4, 5, 6, 7]))
    store.finish_shard(other)
    alone = store.place_shard(job, 0, owner="w0").lease
    assert alone is not None
    assert store.place_shard(job, 2, owner="w2").waiting
    store.commit(alone, outcomes([0, 1, 2, 3]))
    store.finish_shard(alone)
    assert store.place_shard(job, 2, owner="w2").lease is not None


def _at(node: str, lane: int, generation: int = 0, state: ReplicaState = ReplicaState.READY) -> ReplicaRow:
    name = f"job/1/replica-{lane}" + (f"~{generation}" if generation else "")
    return ReplicaRow(name=name, lane=lane, state=state, slots=2, node=node, max_num_seqs=4)


def _die(store: Store, lease: ShardLease, *, suspect: bool = True) -> bool:
    """The shard's engine dies; whether that was at another place than its crash before."""
    [node] = [row.node for row in store.replicas(lease.job_id) if row.name == lease.replica]
    store.note_attempt(lease, node=node)
    elsewhere = store.snapshot(lease).elsewhere
    store.replica_gone(lease.job_id, lease.replica or "")
    store.release_shard(lease, cause="ENGINE_CRASH", suspect=suspect)
    return elsewhere


def _placed(store: Store, job: JobLease, number: int) -> ShardLease:
    lease = store.place_shard(job, number, owner=f"w{number}").lease
    assert lease is not None
    return lease


def test_a_suspect_goes_to_another_node_though_it_has_to_wait_for_it(store: Store) -> None:
    """A replica whose engines always die is the emptiest whenever it is ready."""
    job = ready_job(store, shards=3)
    store.put_replicas(job, [_at("n1", 0), _at("n2", 1)])
    assert not _die(store, _placed(store, job, 0))  # its first
    store.put_replicas(job, [_at("n1", 0, 1)])
    other = _placed(store, job, 1)
    assert other.replica == "job/1/replica-0~1"
    busy = _placed(store, job, 2)
    assert busy.replica == "job/1/replica-1"
    store.release_shard(other, cause="SPOT")
    assert store.place_shard(job, 0, owner="w0").waiting  # though replica-0 is empty
    store.release_shard(busy, cause="SPOT")
    suspect = _placed(store, job, 0)
    assert (suspect.replica, suspect.suspect) == ("job/1/replica-1", True)
    assert _die(store, suspect)


def test_a_suspect_goes_to_another_lane_where_there_is_no_other_node(store: Store) -> None:
    """As with one bad GPU of several; and of a place that died before it was fed, it keeps away too."""
    job = ready_job(store, shards=1)
    store.put_replicas(job, [_at("n1", 0), _at("n1", 1)])
    assert not _die(store, _placed(store, job, 0))
    store.put_replicas(job, [_at("n1", 0, 1)])
    elsewhere = _placed(store, job, 0)
    assert elsewhere.replica == "job/1/replica-1"
    assert _die(store, elsewhere, suspect=False)  # before it was given a row
    store.put_replicas(job, [_at("n1", 1, 1)])
    back = _placed(store, job, 0)
    assert back.replica == "job/1/replica-0~1"
    assert not _die(store, back)  # of the crashes that count, both were here
    store.put_replicas(job, [_at("n1", 1, 2)])
    assert _die(store, _placed(store, job, 0))


def test_a_crash_at_the_only_place_counts(store: Store) -> None:
    job = ready_job(store, shards=1)
    for generation in range(2):
        store.put_replicas(job, [_at("n1", 0, generation)])
        assert _die(store, _placed(store, job, 0))


def test_replicas_that_share_a_node_are_at_one_place(store: Store) -> None:
    """Each is on two nodes: a bad node that both have would make them die, and the row is not convicted."""
    job = ready_job(store, shards=3)
    first, second = replace(_at("n1", 0), others=("n2",)), replace(_at("n2", 1), others=("n3",))
    far = replace(_at("n4", 2), others=("n5",))
    store.put_replicas(job, [first, second, far])
    assert [(row.node, row.others) for row in store.replicas("job")][:2] == [("n1", ("n2",)), ("n2", ("n3",))]
    assert not _die(store, _placed(store, job, 0))
    busy = [_placed(store, job, number) for number in (1, 2)]
    assert [lease.replica for lease in busy] == [second.name, far.name]
    store.release_shard(busy[0], cause="SPOT")
    assert store.place_shard(job, 0, owner="w0").waiting  # for the one that shares no node with the first
    store.put_replicas(job, [replace(far, state=ReplicaState.GONE)])
    near = _placed(store, job, 0)
    assert near.replica == second.name
    assert not _die(store, near)


def test_replicas_that_share_a_node_convict_where_no_others_are(store: Store) -> None:
    job = ready_job(store, shards=1)
    for generation, (node, other) in enumerate([("n1", "n2"), ("n1", "n3"), ("n2", "n3")]):
        store.put_replicas(job, [replace(_at(node, 0, generation), others=(other,))])
        assert _die(store, _placed(store, job, 0))


def test_a_shard_hears_notices_of_all_nodes_of_its_replica(store: Store) -> None:
    job = ready_job(store, shards=1)
    store.put_replicas(job, [replace(_at("n1", 0), others=("n2",)), _at("n3", 1)])
    lease = _placed(store, job, 0)
    for node in ("n1", "n2", "n3"):
        store.record_notice(
            "job", StoredNotice(node=node, source="test", action="terminate", deadline=None, seen_at=0.0)
        )
    assert [notice.node for notice in store.snapshot(lease).notices] == ["n1", "n2"]


def test_halves_keep_away_from_where_the_whole_died(store: Store) -> None:
    job = ready_job(store, shards=1, rows=4)
    store.put_replicas(job, [_at("n1", 0), _at("n2", 1)])
    lease = _placed(store, job, 0)
    store.note_attempt(lease, node="n1")
    [whole] = specs(1, 4)
    halves = [
        replace(whole, number=-1, offset=first, length=2, rows=2, first_position=first) for first in (0, 2)
    ]
    store.split_shard(lease, halves, suspect=True, cause="POISON")
    store.replica_gone("job", "job/1/replica-0")
    store.put_replicas(job, [_at("n1", 0, 1)])
    assert [shard.crashes for shard in store.shards("job")] == [0, 1, 1]
    assert _placed(store, job, 1).replica == "job/1/replica-1"


def _job_of_families(store: Store, job_id: str) -> JobLease:
    """Shards of one row each, in two families and none."""
    store.create_job(job_id, fingerprint=FINGERPRINT, settings={})
    job = store.claim_job(job_id, "driver")
    cut = [replace(spec, family=number % 3) for number, spec in enumerate(specs(_SHARDS, 1))]
    store.add_shards(job, cut, total_rows=_SHARDS)
    return job


class Placements:
    """Replicas come and go, shards are placed, handed back, and accused. One driver, one worker a shard."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.job = _job_of_families(store, f"placed-{next(_JOBS)}")
        self.ready: dict[str, int] = {}
        self.leases: dict[int, ShardLease] = {}
        for lane in range(2):
            self.put(lane, ReplicaState.READY, slots=2)

    def put(self, lane: int, state: ReplicaState, slots: int) -> None:
        row = ReplicaRow(name=f"r{lane}", lane=lane, state=state, slots=slots)
        self.store.put_replicas(self.job, [row])
        self.ready.pop(row.name, None)
        if state is ReplicaState.READY:
            self.ready[row.name] = slots

    def place(self, pick: int) -> None:
        shards = {shard.number: shard for shard in self.store.shards(self.job.job_id)}
        number = _picked([n for n in shards if n not in self.leases] or shards, pick)
        accused = {n for n, s in shards.items() if s.crashes and s.state is not ShardState.DONE}
        now = self.clock.time
        live = [s for s in shards.values() if s.state is ShardState.LEASED and (s.lease_until or 0) > now]
        loads = {name: {s.number for s in live if s.replica == name} for name in self.ready}
        idle = [name for name, load in loads.items() if not load]
        roomy = [n for n, load in loads.items() if len(load) < self.ready[n] and not accused & load]
        chosen = self.chosen(shards[number])
        claim = self.store.place_shard(self.job, number, owner=f"w{number}", ttl=_TTL, again=pick % 2 == 0)
        if claim.lease is not None:
            assert shards[number].state is not ShardState.DONE
            assert claim.lease.replica in (idle if number in accused else roomy)
            assert number in accused or claim.lease.replica == chosen
            self.leases[number] = claim.lease
        elif shards[number].state is ShardState.DONE:
            assert not claim.waiting
        else:
            assert claim.waiting
            assert accused or not idle  # an idle replica takes whoever comes
            if number in accused and len(idle) == len(self.ready) > 0:
                assert len(accused) > len(self.ready)  # others were promised all of them

    def chosen(self, shard: Shard) -> str | None:
        """Where a shard that is no suspect goes, by all that is known: the database looks for it alone."""
        job_id = self.job.job_id
        there = self.store.shards(job_id, open_only=True)
        views = replica_views(there, self.store.replicas(job_id), self.clock.time)
        view = ShardView(number=shard.number, family=shard.family)
        return choose(view, views, lambda: Backlog(waiting=0, coming=0)).replica

    def give_back(self, pick: int, *, accused: bool) -> None:
        if self.leases:
            lease = self.leases.pop(_picked(self.leases, pick))
            self.store.release_shard(lease, cause="ENGINE_CRASH", suspect=accused)

    def finish(self, pick: int) -> None:
        if self.leases:
            lease = self.leases.pop(_picked(self.leases, pick))
            self.store.commit(lease, outcomes([lease.number]))
            self.store.finish_shard(lease)

    def lapse(self) -> None:
        self.clock.pass_seconds(_TTL)
        self.leases.clear()


def _picked(numbers: Iterable[int], pick: int) -> int:
    ordered = sorted(numbers)
    return ordered[pick % len(ordered)]


_STEPS: list[Callable[[Placements, random.Random], None]] = [
    lambda placements, rng: placements.give_back(rng.randrange(99), accused=rng.random() < 0.5),
    lambda placements, rng: placements.finish(rng.randrange(99)),
    lambda placements, rng: placements.put(
        rng.randrange(2), rng.choice(list(ReplicaState)), rng.randint(1, 3)
    ),
    lambda placements, rng: placements.put(rng.randrange(2), ReplicaState.READY, slots=2),
    lambda placements, _: placements.lapse(),
    *[lambda placements, rng: placements.place(rng.randrange(99))] * 4,
]


def test_a_shard_that_waited_looks_again_and_finds_what_came_free(store: Store) -> None:
    job = ready_job(store, shards=4)
    store.put_replicas(job, [_ready("a", slots=1)])
    first = _placed(store, job, 0)
    assert store.place_shard(job, 1, owner="w1", again=True).waiting
    assert store.place_shard(job, 0, owner="other", again=True) == Claim(lease=None)  # held
    store.release_shard(first, cause="SPOT")
    assert store.place_shard(job, 1, owner="w1", again=True).lease is not None
    store.claim_job("job", "driver")
    with pytest.raises(FencedError):
        store.place_shard(job, 2, owner="w2", again=True)


def test_what_is_known_of_a_replica_is_not_written_again(store: Store, clock: FakeClock) -> None:
    """A driver tells of a thousand replicas every few seconds. The oldest of a lane comes first."""
    job = ready_job(store)
    store.put_replicas(job, [_ready("b")])
    clock.pass_seconds(1)
    store.put_replicas(job, [_ready("a")])
    clock.pass_seconds(1)
    store.put_replicas(job, [_ready("b"), _ready("a")])
    assert [row.name for row in store.replicas("job")] == ["b", "a"]
    store.replica_gone("job", "b")
    clock.pass_seconds(1)
    store.put_replicas(job, [_ready("b"), _ready("a")])
    assert [(row.name, row.state) for row in store.replicas("job")] == [
        ("a", ReplicaState.READY), ("b", ReplicaState.READY),
    ]  # fmt: skip
    assert store.replica("job", "b") == store.replicas("job")[1]
    assert store.replica("job", "c") is None


@pytest.mark.heavy
def test_wherever_shards_are_placed_there_is_room_and_suspects_are_alone(
    store: Store, clock: FakeClock, rng: random.Random
) -> None:
    """Drawn evenly: what Hypothesis draws (30 times 40 steps) placed three suspects."""
    for _ in range(15):
        placements = Placements(store, clock)
        for _ in range(40):
            rng.choice(_STEPS)(placements, rng)


def test_why_a_replica_does_not_work_stands_beside_its_state(store: Store) -> None:
    job = ready_job(store)
    waits = replace(_ready("a", state=ReplicaState.STARTING), note="asks for 2 CPUs")
    store.put_replicas(job, [waits, replace(_ready("b"), lane=1)])
    assert [row.note for row in store.replicas("job")] == ["asks for 2 CPUs", None]
    store.put_replicas(job, [replace(waits, state=ReplicaState.READY, note=None)])
    assert [row.note for row in store.replicas("job")] == [None, None]


def test_the_connections_that_the_database_allows_are_known(store: Store, store_url: str) -> None:
    most = store.most_connections()
    assert most is None if "://" not in store_url else most is not None and 10 < most.most < 10_000
