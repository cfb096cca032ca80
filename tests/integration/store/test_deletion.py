"""Deleting jobs: nothing of them stays, nothing of others goes, and a kill in the middle is made good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from dray.errors import FencedError, JobBusyError, UnknownJobError
from dray.job.deleting import delete_job, finish_deletions
from dray.store import Charge, JobState, Notice, ReplicaRow, ReplicaState, Store, deletion, open_store
from dray.store.schema import metadata
from tests.support.command import ROOT
from tests.support.stores import FakeClock, claimed, outcomes, ready_job

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "BATCH_ROWS", 3)


def _rows(store: Store) -> dict[str, int]:
    """Rows of every table."""
    tables = [table for table in metadata.sorted_tables if table.name != "alembic_version"]
    return store._read(
        lambda tx: {t.name: tx.execute(select(func.count()).select_from(t)).scalar_one() for t in tables}
    )


def _busy_job(store: Store, name: str, *, end: JobState | None = JobState.COMPLETED) -> None:
    """A job with rows in every table."""
    job = ready_job(store, name, shards=2, rows=4)
    for number in range(2):
        lease = claimed(store, job, number)
        store.commit(lease, outcomes(range(number * 4, number * 4 + 4)))
        store.finish_shard(lease)
    store.record_span(name, "n", "engine", 1.0, 2.0)
    store.record_notice(name, Notice(node="n", source="aws", action="stop", deadline=1.0, seen_at=0.0))
    store.charge(name, [Charge(budget="infra", scope="", event="e", cause="NODE_LOSS")])
    store.put_replicas(job, [ReplicaRow(name="r", lane=0, state=ReplicaState.READY, slots=1)])
    if end is not None:
        store.set_job_state(job, end)
        store.release_job(job)


def test_a_deleted_job_leaves_no_row_and_others_stay(store: Store) -> None:
    _busy_job(store, "other")
    before = _rows(store)
    assert all(before.values()), "a table that no test fills proves nothing"
    _busy_job(store, "job")
    deleted = delete_job(store, "job")
    assert (deleted.job_id, deleted.rows, deleted.left) == ("job", 8, None)
    assert _rows(store) == before
    assert store.verify_counts("other").done == 8
    with pytest.raises(UnknownJobError):
        delete_job(store, "job")


def test_a_job_that_runs_is_not_deleted(store: Store, clock: FakeClock) -> None:
    _busy_job(store, "job", end=None)
    with pytest.raises(JobBusyError, match=r"is being run by driver; stop it first, .*`dray cancel job`"):
        delete_job(store, "job")
    assert store.verify_counts("job").done == 8
    clock.pass_seconds(61)  # its driver is gone
    assert delete_job(store, "job").rows == 8


def test_who_still_works_on_it_is_fenced(store: Store, clock: FakeClock) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    store.commit(lease, outcomes([0]))
    clock.pass_seconds(61)
    buried = store.bury_job("job")
    for act in (
        lambda: store.commit(lease, outcomes([1])),
        lambda: store.renew_shard(lease),
        lambda: store.renew_job(job),
        lambda: store.merge_job_info(job, {"a": 1}),
        lambda: store.claim_shard(job, 1, owner="late"),
    ):
        with pytest.raises(FencedError):
            act()
    assert store.remove_job(buried) == 1


def test_its_name_is_free_at_once(store: Store) -> None:
    _busy_job(store, "job")
    store.bury_job("job")
    assert store.list_jobs() == []
    _busy_job(store, "job")
    assert [done.rows for done in finish_deletions(store)] == [8]
    assert store.verify_counts("job").done == 8
    assert [job.job_id for job in store.list_jobs()] == ["job"]


def test_ended_jobs_of_an_age(store: Store, clock: FakeClock) -> None:
    states = [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED, JobState.PAUSED]
    for state in states:
        _busy_job(store, f"old-{state}", end=state)
    _busy_job(store, "crashed", end=None)
    clock.pass_seconds(100)
    _busy_job(store, "new")
    found = [job.job_id for job in store.ended_jobs(older_than=50)]
    assert found == ["old-completed", "old-failed", "old-cancelled", "old-expired"]
    assert [job.job_id for job in store.ended_jobs(older_than=200)] == []


_DELETE = """
import os, signal, sys
from dray.job.deleting import delete_job
from dray.store import deletion, open_store
deletion.BATCH_ROWS = 3
left = int(sys.argv[2])
real = {name: getattr(deletion, name) for name in ("bury", "remove_batch", "remove_rest")}

def dying(name):
    def call(*given, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*given, **more)
    return call

for name in real:
    setattr(deletion, name, dying(name))
with open_store(sys.argv[1], create=False) as store:
    delete_job(store, "job")
"""


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_deletion_that_was_killed_is_finished(
    store: Store, store_url: str, after: int, finish: Callable[[Store], int]
) -> None:
    """After the first transaction, among the rows, and before the last one."""
    _busy_job(store, "other")
    before = _rows(store)
    _busy_job(store, "job")
    ended = subprocess.run(
        [sys.executable, "-c", _DELETE, store_url, str(after)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL
    assert _rows(store) != before
    assert store.find_job("job") is None
    with open_store(store_url, create=False) as another:
        assert finish(another) == 8 - min(8, 3 * (after - 1))
    assert _rows(store) == before


@pytest.fixture(params=["the same command", "any deletion"])
def finish(request: pytest.FixtureRequest) -> Callable[[Store], int]:
    if request.param == "any deletion":
        return lambda store: sum(done.rows for done in finish_deletions(store))
    return lambda store: delete_job(store, "job").rows
