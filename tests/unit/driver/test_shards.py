"""Shard tasks of a job: what the driver does when one of them ends, with the real store and without Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dray.cluster import Node
from dray.driver.events import Event, ShardFinished, ShardSubmitted, Told, Warned
from dray.driver.executor import TaskEnd
from dray.driver.shard_tasks import crashes as shard_crashes
from dray.driver.shard_tasks import shards as shard_tasks
from dray.driver.shard_tasks.crashes import MAX_CRASHES, pause_after
from dray.driver.shard_tasks.idling import Bound, bound_tasks
from dray.driver.shard_tasks.lapsed import LapsedLeases, Unclaimed
from dray.driver.shard_tasks.shards import (
    EARLY,
    ENDING_SECONDS,
    HUNG_SECONDS,
    UNCLAIMED_SECONDS,
    ShardTasks,
    commit_seconds,
)
from dray.errors import FencedError, JobFailedError, JobPausedError, StoreTransientError
from dray.failures.facts import Cause
from dray.job.open_job import OpenJob
from dray.shard.task import Ended, TaskResult
from dray.shard.work import ShardReceipt
from dray.store import AttemptCause, JobLease, ReplicaRow, ReplicaState, ShardState, Store, open_store
from tests.support.stores import FakeClock, claimed, outcomes, ready_job
from tests.unit.driver.scripted import BreakableStore, ScriptedExecutor, cluster

pytestmark = pytest.mark.unit


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[Store]:
    with open_store(url, clock=clock) as opened:
        yield opened


class Tasks:
    """The shard tasks of a job, whose ends a test reports."""

    def __init__(
        self,
        store: Store,
        url: str,
        lease: JobLease,
        *,
        lanes: int = 1,
        bound: Bound | None = None,
        watched: Callable[[], float] = time.monotonic,
        look_every: float = 0.0,
    ) -> None:
        settings = SimpleNamespace(store_url=url, rows_access=None, media_roots={})
        job = cast("OpenJob", SimpleNamespace(job_id=lease.job_id, lease=lease, settings=settings))
        self.store, self.lease = store, lease
        self.executor = ScriptedExecutor()
        self.events: list[Event] = []
        self.tasks = ShardTasks(
            job,
            self.executor,
            self.events.append,
            lanes=lanes,
            bound=bound or Bound(tasks=2 * lanes),
            look_every=look_every,
            watched=watched,
        )

    @property
    def submitted(self) -> list[int]:
        return self.executor.submitted

    @property
    def warnings(self) -> list[str]:
        return [event.line for event in self.events if isinstance(event, Warned)]

    def start(self) -> None:
        self.tasks.prestart(self.store.shards("job"))

    def look(self, ready: int = 0) -> None:
        self.tasks.look_soon()
        self.tasks.schedule(self.store, ready)

    def crash(self, number: int = 0, cause: str | None = None) -> None:
        """The worker process of a shard's task died, or its task ended early by this cause."""
        self.tasks.take([TaskEnd(number=number, crashed=True, cause=cause)])


def test_a_shard_whose_worker_died_is_to_be_had_at_once(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    claimed(store, tasks.lease)
    tasks.crash()
    tasks.look()
    assert store.shards("job")[0].state is ShardState.PENDING
    assert [one.cause for one in store.attempts("job")] == ["NODE_LOSS"]
    assert tasks.submitted == [0, 0]
    assert tasks.warnings == ["shard 0: its worker process died; running it again"]


def test_what_ended_a_task_early_is_in_the_warning_and_in_the_jobs_reason(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=1))
    for _ in range(MAX_CRASHES):
        tasks.crash(cause="RuntimeEnvSetupError")
        tasks.look()
    assert tasks.warnings[0] == "shard 0: its task ended early (RuntimeEnvSetupError); running it again"
    with pytest.raises(JobPausedError, match=r"its task ended early \(RuntimeEnvSetupError\) 4 times"):
        tasks.crash(cause="RuntimeEnvSetupError")


def test_it_is_freed_once_a_store_that_was_away_is_back(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    claimed(store, tasks.lease)
    tasks.crash()
    broken = BreakableStore(store)
    with broken.away(StoreTransientError("away")), pytest.raises(StoreTransientError):
        tasks.tasks.schedule(cast("Store", broken), 0)
    assert tasks.tasks.left
    tasks.look()
    assert store.shards("job")[0].state is ShardState.PENDING


def test_a_driver_that_was_replaced_leaves_its_successors_shards_alone(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    claimed(store, store.claim_job("job", "two", takeover=lambda owner: True))
    tasks.crash()
    with pytest.raises(FencedError):
        tasks.look()
    assert store.shards("job")[0].state is ShardState.LEASED


def test_a_worker_that_dies_again_and_again_puts_the_job_to_rest(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=1))
    for _ in range(MAX_CRASHES):
        tasks.crash()
        tasks.look()
    with pytest.raises(JobPausedError, match=r"shard 0: its worker process died 4 .*`dray resume JOB`"):
        tasks.crash()


def test_a_worker_that_died_again_is_replaced_after_a_pause(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends processes has time to pass. Other shards go on meanwhile, and the driver looks in time."""
    monkeypatch.setattr(shard_crashes, "pause_after", lambda crashes: 0.3 if crashes > 1 else 0.0)
    tasks = Tasks(store, url, ready_job(store, shards=2), bound=Bound(tasks=1))
    tasks.start()
    tasks.crash()
    tasks.look()
    tasks.crash()
    tasks.look()
    assert tasks.submitted == [0, 0, 1]
    assert tasks.tasks.left
    assert 0 < tasks.tasks._look_at - time.monotonic() <= 0.3
    tasks.crash(1)
    time.sleep(0.3)
    tasks.look()
    assert tasks.submitted == [0, 0, 1, 0]
    assert "running it again in 0 s" in tasks.warnings[1]


@pytest.mark.parametrize(("crashes", "seconds"), [(1, 0), (2, 4), (3, 8)])
def test_pauses_become_longer(crashes: int, seconds: float) -> None:
    assert pause_after(crashes) == seconds


def test_a_shard_that_failed_ends_the_job(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store))
    tasks.start()
    error = JobFailedError("shard 1 failed")
    with pytest.raises(JobFailedError) as caught:
        tasks.tasks.take([TaskEnd(number=1, error=error)])
    assert caught.value is error


def test_a_suspect_goes_beyond_the_limit_when_those_that_fill_it_wait_for_its_replica(
    store: Store, url: str, clock: FakeClock
) -> None:
    """Its attempt ended without the store, so it was held until its lease lapsed."""
    lease = ready_job(store, shards=5)
    row = ReplicaRow(name="a", lane=0, state=ReplicaState.READY, slots=2, node="n", max_num_seqs=4)
    store.put_replicas(lease, [row])
    store.release_shard(claimed(store, lease), cause="ENGINE_CRASH", suspect=True)
    assert store.place_shard(lease, 0, owner="w0").lease is not None  # alone, and its holder is gone
    tasks = Tasks(store, url, lease)
    for _ in range(2):  # while it is held, and when its lease has lapsed
        tasks.look()
        clock.pass_seconds(100)
    assert [store.place_shard(lease, number, owner=f"w{number}").waiting for number in (1, 2)] == [True, True]
    assert tasks.submitted == [1, 2, 0]  # and no more of those that may wait
    assert store.place_shard(lease, 0, owner="again").lease is not None


@pytest.fixture
def own_clock(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The driver's own seconds pass with the store's."""
    for form in (LapsedLeases, Unclaimed):
        monkeypatch.setattr(
            shard_tasks, form.__name__, lambda seconds, _, form=form: form(seconds, lambda: clock.time)
        )
    return clock


def test_a_shard_whose_task_stands_still_is_run_again(store: Store, url: str, own_clock: FakeClock) -> None:
    """Its process is stopped, or hangs in the kernel: the job waited for it without an end."""
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    hung = claimed(store, tasks.lease)

    def pass_until_given_up() -> None:
        own_clock.pass_seconds(hung.ttl + 1)
        tasks.look()
        own_clock.pass_seconds(HUNG_SECONDS + 1)
        tasks.look()

    own_clock.pass_seconds(hung.ttl + HUNG_SECONDS + 1)
    tasks.look()  # the lease is over; by the driver's own clock only now
    own_clock.pass_seconds(HUNG_SECONDS - 1)
    tasks.look()
    assert (tasks.submitted, tasks.executor.cancelled) == ([0], [])  # it may be about to end by itself
    own_clock.pass_seconds(2)
    tasks.look()
    assert (tasks.submitted, tasks.executor.cancelled) == ([0, 0], [0])
    assert "stands still" in tasks.warnings[0]
    again = store.place_shard(tasks.lease, 0, owner="again")
    assert again.lease is not None or again.waiting
    for _ in range(MAX_CRASHES - 1):
        store.claim_shard(tasks.lease, 0, owner="hangs, too")
        pass_until_given_up()
    store.claim_shard(tasks.lease, 0, owner="hangs, too")
    with pytest.raises(JobPausedError, match="stands still"):
        pass_until_given_up()


def test_a_task_that_leaves_a_free_place_untaken_is_given_up(
    store: Store, url: str, own_clock: FakeClock
) -> None:
    """Its process hangs before it asks for a place: nothing of it is in the store."""
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    for _ in range(3):  # no replica is there yet
        own_clock.pass_seconds(UNCLAIMED_SECONDS)
        tasks.look()
    store.put_replicas(tasks.lease, [ReplicaRow(name="r", lane=0, state=ReplicaState.READY, slots=2)])
    tasks.look(1)
    own_clock.pass_seconds(UNCLAIMED_SECONDS - 1)
    tasks.look(1)
    assert (tasks.submitted, tasks.executor.cancelled) == ([0], [])
    own_clock.pass_seconds(2)
    tasks.look(1)
    assert tasks.tasks.left  # else the driver would write the files, though no task of it runs now
    tasks.look(1)
    assert (tasks.submitted, tasks.executor.cancelled) == ([0, 0], [0])
    assert tasks.warnings == [
        "shard 0: its task has left a free place untaken for 10 minutes (its process hangs, or its node does "
        "not reach the store); running it again"
    ]


def test_a_task_whose_attempts_end_between_two_looks_is_well(
    store: Store, url: str, own_clock: FakeClock
) -> None:
    """It cannot read its requests, and waits up to a minute after each try: after 30, it pauses the job."""
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    store.put_replicas(tasks.lease, [ReplicaRow(name="r", lane=0, state=ReplicaState.READY, slots=2)])
    for _ in range(30):
        tasks.look(1)
        own_clock.pass_seconds(59)
        taken = store.place_shard(tasks.lease, 0, owner="o").lease
        assert taken is not None
        store.release_shard(taken, cause=AttemptCause.SPOOL_AWAY)
        own_clock.pass_seconds(1)
    assert tasks.executor.cancelled == []


def test_a_task_that_waits_behind_others_is_well(store: Store, url: str, own_clock: FakeClock) -> None:
    """The replica's two places are taken, for however long."""
    tasks = Tasks(store, url, ready_job(store, shards=3), bound=Bound(tasks=3))
    store.put_replicas(tasks.lease, [ReplicaRow(name="r", lane=0, state=ReplicaState.READY, slots=2)])
    tasks.look(1)
    claims = [store.place_shard(tasks.lease, number, owner="o") for number in range(2)]
    held = [claim.lease for claim in claims if claim.lease is not None]
    assert len(held) == 2
    tasks.look(1)
    assert tasks.submitted == [0, 1, 2]
    for _ in range(4):
        own_clock.pass_seconds(held[0].ttl / 2)
        for lease in held:
            store.renew_shard(lease)
        own_clock.pass_seconds(held[0].ttl / 2)
        tasks.look(1)
    assert tasks.executor.cancelled == []


def test_a_job_that_stops_waits_for_the_tasks_that_have_a_lease(store: Store, url: str) -> None:
    now = [0.0]
    tasks = Tasks(store, url, ready_job(store, shards=2), watched=lambda: now[0])
    tasks.start()
    lease = claimed(store, tasks.lease)
    now[0] = 500.0
    tasks.tasks.schedule(store, 1)
    for _ in range(3):
        now[0] += ENDING_SECONDS - 1
        tasks.tasks.schedule(store, 1, start=False)
        assert tasks.tasks.ending
    store.release_shard(lease, cause=Cause.NODE_LOSS, detail="its node died")
    tasks.tasks.schedule(store, 1, start=False)
    assert tasks.tasks.ending
    now[0] += ENDING_SECONDS + 1
    tasks.tasks.schedule(store, 1, start=False)
    over = tasks.tasks.ending
    tasks.tasks.forget_lapsed()  # the store was away: nothing is known of leases
    assert (over, tasks.tasks.ending) == (False, True)


def test_no_task_stands_still_while_the_store_takes_no_writes(
    store: Store, url: str, own_clock: FakeClock
) -> None:
    """On SQLite another program may keep all writers out: shards are read, and no lease can be renewed."""
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    held = claimed(store, tasks.lease)
    for _ in range(5):
        own_clock.pass_seconds(held.ttl + HUNG_SECONDS)
        tasks.look()
        tasks.tasks.forget_lapsed()
    assert tasks.executor.cancelled == []


def test_shards_are_left_until_the_store_says_otherwise(store: Store, url: str) -> None:
    """Else the driver would write the files while rows of the shard have no outcome."""
    tasks = Tasks(store, url, ready_job(store, shards=1))
    assert tasks.tasks.left
    tasks.start()
    tasks.look()  # none is idle
    assert tasks.tasks.running
    ended = TaskResult(how=Ended.HELD, message="")
    tasks.tasks.take([TaskEnd(number=0, result=ended)])
    assert (tasks.tasks.running, tasks.tasks.left) == (False, True)
    tasks.tasks.schedule(store, 0)
    assert tasks.submitted == [0, 0]
    lease = claimed(store, tasks.lease)
    store.commit(lease, outcomes(range(4)))
    store.finish_shard(lease)
    tasks.tasks.take([TaskEnd(number=0, result=ended)])
    tasks.tasks.schedule(store, 0)
    assert (tasks.submitted, tasks.tasks.running, tasks.tasks.left) == ([0, 0], False, False)


def test_the_store_is_read_again_when_more_replicas_are_ready(store: Store, url: str) -> None:
    """While nothing changed it is not, which would raise here."""
    lease = ready_job(store, shards=9)
    tasks = Tasks(store, url, lease, lanes=2, bound=Bound(tasks=6))
    tasks.start()
    tasks.tasks.schedule(store, 0)
    broken = BreakableStore(store)
    with broken.away(StoreTransientError("away")):
        tasks.tasks.schedule(cast("Store", broken), 0)
    store.put_replicas(lease, [_row(lane, ReplicaState.READY) for lane in range(2)])
    tasks.tasks.schedule(store, 2)
    assert tasks.submitted == [0, 1, 2, 3, 4, 5]
    with broken.away(StoreTransientError("away")):
        tasks.tasks.schedule(cast("Store", broken), 2)


def test_a_job_that_is_to_stop_starts_nothing_more(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store))
    tasks.tasks.schedule(store, 0, start=False)
    assert tasks.submitted == []


def test_shards_whose_tasks_may_stand_still_are_looked_at_while_nothing_else_is_open(
    store: Store, url: str
) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=1))
    tasks.start()
    tasks.look()
    assert tasks.tasks.left
    assert 0 < tasks.tasks._look_at - time.monotonic() <= 30.0


def test_starts_that_take_long_put_no_look_off(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect takes 0.1 s for each. The pause is for looks at many shards: a replica idled for 4 s of six."""
    lease = ready_job(store, shards=9)
    tasks = Tasks(store, url, lease, bound=Bound(tasks=3), look_every=30.0)
    store.put_replicas(lease, [_row(0, ReplicaState.READY)])
    monkeypatch.setattr(tasks.executor, "submit", lambda work: time.sleep(0.3))
    tasks.tasks.schedule(store, 1)
    assert tasks.tasks.running
    tasks.tasks.take([TaskEnd(number=0, result=TaskResult(how=Ended.DONE, message=""))])
    assert tasks.tasks._look_at - time.monotonic() < 5.0  # 18 s for three starts


def test_shard_tasks_follow_the_replicas_that_are_ready(store: Store, url: str) -> None:
    """Each is a process of its own on a stable node: 1,000 while no engine is up would fill the head."""
    lease = ready_job(store, shards=60)
    tasks = Tasks(store, url, lease, lanes=20)
    tasks.start()
    counts = [len(tasks.submitted)]
    for ready in (0, 3, 10, 4, 20):
        rows = [_row(lane, ReplicaState.READY if lane < ready else ReplicaState.GONE) for lane in range(20)]
        store.put_replicas(lease, rows)
        tasks.look(ready)
        counts.append(len(tasks.submitted))
    assert counts == [EARLY, 8, 14, 28, 28, 40]  # what runs goes on when fewer are ready
    whys = [event.why for event in tasks.events if isinstance(event, ShardSubmitted)]
    assert len(whys) == 40


def _row(lane: int, state: ReplicaState) -> ReplicaRow:
    return ReplicaRow(name=f"r{lane}", lane=lane, state=state, slots=2, node="n", max_num_seqs=4)


def test_the_ends_of_tasks_are_told_with_their_receipts_and_interruptions(store: Store, url: str) -> None:
    tasks = Tasks(store, url, ready_job(store, shards=3))
    tasks.start()
    receipts = [
        ShardReceipt(number=number, rows=4, skipped=0, seconds=1.0, last_commit=at, replica="r")
        for number, at in enumerate((20.0, 30.0, 10.0))
    ]
    for receipt in receipts:
        reasons = (f"shard {receipt.number}: the engine died",)
        result = TaskResult(how=Ended.DONE, message="", receipt=receipt, interrupted=reasons)
        tasks.tasks.take([TaskEnd(number=receipt.number, result=result)])
    finished = [event for event in tasks.events if isinstance(event, ShardFinished)]
    assert [(event.how, event.receipt) for event in finished] == [(Ended.DONE, one) for one in receipts]
    told = [event.line for event in tasks.events if isinstance(event, Told)]
    assert told == [f"shard {number}: the engine died" for number in range(3)]


def test_what_bounds_the_shard_tasks_is_told_at_the_start(store: Store, url: str) -> None:
    lease = ready_job(store)
    node = Node(node_id="h", host="h", cpus=2, gpus=0, stable=True, memory=2 * 2**30)
    spot = Node(node_id="s", host="s", cpus=2, gpus=0, stable=False, memory=2**40)
    job = SimpleNamespace(job_id=lease.job_id, lease=lease, settings=SimpleNamespace(store_url=url))
    told: list[Event] = []
    bound = bound_tasks(cast("OpenJob", job), 20, cluster(node, spot), told.append)
    assert bound.tasks == 5
    [event] = told
    assert isinstance(event, Warned)
    assert "20 replicas, but the memory of the stable nodes (2 GiB) holds 5 shard tasks" in event.line
    told.clear()
    assert bound_tasks(cast("OpenJob", job), 3, cluster(node, spot), told.append).tasks == 5
    assert told == []


def test_many_tasks_commit_less_often() -> None:
    assert [commit_seconds(tasks) for tasks in (1, 16, 125, 500, 2000)] == [0.25, 0.25, 0.25, 1.0, 4.0]


def test_a_task_waits_beside_those_that_run_so_that_no_replica_does(store: Store, url: str) -> None:
    lease = ready_job(store, shards=9)
    tasks = Tasks(store, url, lease, lanes=2, bound=Bound(tasks=6))
    store.put_replicas(lease, [_row(lane, ReplicaState.READY) for lane in range(2)])
    tasks.start()
    assert tasks.submitted == [0, 1, 2, 3]
    tasks.look(2)
    assert tasks.submitted == [0, 1, 2, 3, 4, 5]
    for number in range(4):
        assert store.place_shard(lease, number, owner=f"w{number}").lease is not None
    assert store.place_shard(lease, 4, owner="waits").waiting
