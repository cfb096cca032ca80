"""Shard tasks that find no connection to the store: as many run as do, and more are tried now and then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.driver.executor import TaskEnd
from dray.driver.shard_tasks import shards as shard_tasks
from dray.driver.shard_tasks.idling import Bound
from dray.driver.shard_tasks.refusals import FIRST_PAUSE, LONGEST_PAUSE, SETTLED_SECONDS, Refusals
from dray.errors import JobBlockedError, JobPausedError
from dray.failures.rules import STORE_PATIENCE
from dray.shard.task import Ended, TaskResult
from dray.store import ReplicaRow, ReplicaState, Store, open_store
from tests.support.stores import FakeClock, ready_job
from tests.unit.driver.test_shards import Tasks

pytestmark = pytest.mark.unit

WHY = "store dray (PostgreSQL): the role has no connection left: raise its CONNECTION LIMIT, or close others"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def refusals(clock: FakeClock) -> Refusals:
    """Six tasks run; none has been refused."""
    found = Refusals(lambda: clock.time)
    for number in range(6):
        found.started(number)
    return found


def test_no_more_run_than_find_a_connection_and_more_are_tried_less_and_less_often(
    refusals: Refusals, clock: FakeClock
) -> None:
    """Each try in vain costs the start of some processes."""
    assert refusals.most(8) == 8
    assert [refusals.refused(number, WHY) for number in (5, 4)] == [True, False]
    pause = FIRST_PAUSE
    for _ in range(6):
        clock.pass_seconds(pause - 1)
        assert refusals.most(8) == 4
        clock.pass_seconds(1)
        assert refusals.most(8) == 8
        refusals.started(4)
        assert not refusals.refused(4, WHY)
        pause = min(2 * pause, LONGEST_PAUSE)


def test_all_run_again_once_none_has_been_refused_for_a_while(refusals: Refusals, clock: FakeClock) -> None:
    for number in range(6):
        refusals.refused(number, WHY)
    found = []
    for _ in range(6):
        found.append((refusals.most(6), refusals.told))
        clock.pass_seconds(2 * FIRST_PAUSE)
    assert found == [(1, WHY), (2, WHY), (4, WHY), (6, WHY), (6, None), (6, None)]


def test_where_no_task_has_one_for_too_long_the_job_is_paused(refusals: Refusals, clock: FakeClock) -> None:
    """Replicas would wait for ever, and be paid for."""
    for number in range(6):
        refusals.refused(number, WHY)
    clock.pass_seconds(STORE_PATIENCE)
    refusals.started(0)
    refusals.refused(0, WHY)
    clock.pass_seconds(1)
    refusals.started(0)
    with pytest.raises(JobPausedError, match=r"30 minutes no shard task.*CONNECTION LIMIT.*`dray resume"):
        refusals.refused(0, WHY)


def test_while_others_have_one_a_task_may_wait_for_however_long(refusals: Refusals, clock: FakeClock) -> None:
    for _ in range(100):
        refusals.refused(0, WHY)
        clock.pass_seconds(SETTLED_SECONDS)
        refusals.started(0)


# -- with the driver's shard tasks ------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[Store]:
    with open_store(url, clock=clock) as opened:
        yield opened


def _refuse(tasks: Tasks, number: int) -> None:
    result = TaskResult(how=Ended.NO_CONNECTION, message=WHY)
    tasks.tasks.take([TaskEnd(number=number, result=result)])


def _ready(store: Store, tasks: Tasks) -> None:
    store.put_replicas(
        tasks.lease,
        [ReplicaRow(name=str(lane), lane=lane, state=ReplicaState.READY, slots=2) for lane in range(2)],
    )


def test_a_refused_task_ends_neither_the_job_nor_the_others_and_is_told_of_once(
    store: Store, url: str, clock: FakeClock
) -> None:
    """The job was paused after 30 minutes of that, though two tasks committed all the time."""
    lease = ready_job(store, shards=4)
    tasks = Tasks(store, url, lease, lanes=2, bound=Bound(tasks=4), watched=lambda: clock.time)
    _ready(store, tasks)
    tasks.look(2)
    assert tasks.submitted == [0, 1, 2, 3]
    for number in (3, 2):
        _refuse(tasks, number)
        tasks.look(2)
    assert tasks.submitted == [0, 1, 2, 3]  # those that were refused have to wait
    assert tasks.warnings == [f"shard 3 waits for a connection: {WHY}"]
    assert tasks.tasks.without_connection == WHY
    for number in range(2):
        assert store.place_shard(lease, number, owner=f"w{number}", ttl=1e9).lease is not None
    for _ in range(20):
        clock.pass_seconds(LONGEST_PAUSE)
        tasks.look(2)
        for number in tasks.submitted[-2:]:
            _refuse(tasks, number)
    assert tasks.submitted.count(2) > 5
    assert tasks.executor.cancelled == []
    assert len(tasks.warnings) == 1


def test_it_has_left_no_place_untaken(store: Store, url: str, clock: FakeClock) -> None:
    """Its process was ended after 10 minutes, and at the fourth time the job: look at the stable nodes."""
    tasks = Tasks(store, url, ready_job(store, shards=1), watched=lambda: clock.time)
    _ready(store, tasks)
    tasks.look(2)
    try:
        for _ in range(round((STORE_PATIENCE + 4 * shard_tasks.UNCLAIMED_SECONDS) / 30)):
            tasks.look(2)
            clock.pass_seconds(30.0)
            _refuse(tasks, 0)
    except JobPausedError as error:
        assert not isinstance(error, JobBlockedError)
        assert "no shard task has had a connection" in str(error)
    else:
        pytest.fail("the job waits for ever")
    assert tasks.executor.cancelled == []
