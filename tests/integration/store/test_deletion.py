"""Deleting jobs: nothing of them stays, nothing of others goes, and a kill in the middle is made good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from dray.cli.facts import facts_of
from dray.errors import FencedError, JobBusyError, UnknownJobError
from dray.job import deleting
from dray.job.deleting import delete_job, finish_deletions
from dray.store import (
    Charge,
    JobState,
    ReplicaRow,
    ReplicaState,
    Store,
    StoredNotice,
    deletion,
    jobs,
    open_store,
)
from dray.store.database.connection import Tx
from dray.store.database.schema import followers, metadata, spans
from tests.support.command import ROOT
from tests.support.stores import FakeClock, claimed, failure, note_charges, outcome, outcomes, ready_job

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "BATCH_ROWS", 3)


def _rows(store: Store) -> dict[str, int]:
    """Rows of every table that holds those of a job. What engines were seen to reach outlives their jobs."""
    others = {"dray_version", "efficiencies"}
    tables = [table for table in metadata.sorted_tables if table.name not in others]
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
    waiting = [{"job_key": job.key, "idx": 100 + n, "leader": 0, "custom_id": str(n)} for n in range(5)]
    store._write(lambda tx: tx.execute(insert(followers), waiting))
    span = insert(spans).values(
        job_key=job.key, epoch=1, node="n", host="n", place=0, places=1, replica="r", phase="engine",
        started=1.0, micros=2_000_000, gpus=1.0,
    )  # fmt: skip
    store._write(lambda tx: tx.execute(span))
    store.record_notice(name, StoredNotice(node="n", source="aws", action="stop", deadline=1.0, seen_at=0.0))
    note_charges(store, name, [Charge(budget="infra", scope="", event="e", cause="NODE_LOSS")])
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


@pytest.mark.parametrize("another", [False, True])
def test_who_looks_at_a_job_that_is_deleted_meanwhile_is_told_so(
    store: Store, store_url: str, clock: FakeClock, another: bool
) -> None:
    """Also where a new job has its name by then, and on SQLite its key."""
    _busy_job(store, "job")
    with open_store(store_url, create=False) as looking:
        seen = looking.get_job("job")
        delete_job(store, "job")
        if another:
            clock.pass_seconds(1)
            _busy_job(store, "job")
        with pytest.raises(UnknownJobError, match=r"job .*was deleted"):
            facts_of(looking, seen)


def test_holders_of_a_job_that_was_deleted_stop(store: Store, store_url: str) -> None:
    _busy_job(store, "job")
    with open_store(store_url, create=False) as holding:
        assert not holding.stop_signals("job").cancelled
        delete_job(store, "job")
        with pytest.raises(FencedError, match="the job was deleted; stop"):
            holding.stop_signals("job")


def test_a_job_that_runs_is_not_deleted(store: Store, clock: FakeClock) -> None:
    _busy_job(store, "job", end=None)
    with pytest.raises(
        JobBusyError, match=r"is being run by driver; stop it first, .*`dray cancel job --store"
    ):
        delete_job(store, "job")
    assert store.verify_counts("job").done == 8
    clock.pass_seconds(61)  # its driver is gone
    assert delete_job(store, "job").rows == 8


def test_large_answers_are_deleted_a_few_at_a_time_in_statements_without_an_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "BATCH_ROWS", 5)
    monkeypatch.setattr(deletion, "BATCH_BYTES", 1000)
    job = ready_job(store, shards=1, rows=22)
    large = [outcome(row, "x" * 2000) for row in (0, 1)]
    others = [outcome(row, "\u00e9" * 150) for row in range(2, 12)]
    lease = claimed(store, job)
    store.commit(lease, [*large, *others, *(failure(row) for row in range(12, 22))])
    store.finish_shard(lease)
    store.set_job_state(job, JobState.COMPLETED)
    store.release_job(job)
    batches: list[tuple[int, bool]] = []
    write = store._write

    def noted(work: Callable[[Tx], Any], *, long: bool = False) -> Any:
        found = write(work, long=long)
        batches.append((found[0] if found else 0, long))
        return found

    buried = store.bury_job("job")
    monkeypatch.setattr(store, "_write", noted)
    assert store.remove_job(buried) == 22
    rows = [1, 1, 4, 4, 5, 5, 2]
    assert batches == [(count, True) for count in (*rows, 0, 0)]  # then followers, and the job itself


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


def test_a_second_deletion_leaves_a_newer_job_alone(store: Store, store_url: str) -> None:
    """SQLite gives the key of a deleted job to the next one."""
    _busy_job(store, "other")
    _busy_job(store, "job")
    seen = store.get_job("job")
    buried = store.bury_job("job")
    with open_store(store_url, create=False) as another:
        [same] = another.buried_jobs()
        assert store.remove_job(buried) == 8
        _busy_job(store, "newer")
        if store_url.endswith(".db"):
            assert store.get_job("newer").key == seen.key
        assert another.remove_job(same) == 0
        assert store.verify_counts("newer").done == 8
        before = _rows(store)
        _busy_job(store, "job")  # by the clock that stands still it was created at the same moment
        store.bury_job("job")
        assert another.remove_job(same) == 0
        assert [job.job_id.rpartition(":")[2] for job in store.buried_jobs()] == ["job"]
        assert [done.rows for done in finish_deletions(another)] == [8]
    assert _rows(store) == before


def test_what_was_seen_of_a_deleted_job_is_not_done_to_a_newer_one(store: Store, clock: FakeClock) -> None:
    _busy_job(store, "job")
    seen = store.get_job("job")
    assert delete_job(store, "job").rows == 8
    clock.pass_seconds(1)
    _busy_job(store, "newer")
    assert store._write(lambda tx: deletion.bury(tx, seen, "burial", seize=True)) is None
    taken = store._write(lambda tx: jobs.claim(tx, seen, "driver", ttl=60, seize=True, resume=True))
    assert taken is None
    assert store.verify_counts("newer").done == 8


@pytest.mark.heavy(one_of=3)
def test_two_deletions_at_once_delete_a_job_once(store: Store, store_url: str) -> None:
    """While others make jobs, which get the key as soon as it is free."""
    with open_store(store_url, create=False) as another, ThreadPoolExecutor(2) as pool:
        for number in range(8):
            _busy_job(store, "job")
            both = [pool.submit(_deleted_rows, one) for one in (store, another)]
            _busy_job(store, f"newer-{number}")
            assert sum(one.result() for one in both) == 8
            assert store.verify_counts(f"newer-{number}").done == 8
    assert store.buried_jobs() == []


def _deleted_rows(store: Store) -> int:
    """Of the job; none where it was deleted already."""
    with suppress(UnknownJobError):
        return delete_job(store, "job").rows
    return 0


def test_a_deletion_looks_for_files_in_folders_of_jobs_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of this job have an address without a folder: it read the whole working directory."""
    looked: list[str] = []

    def noted(work: str) -> list[tuple[str, int]]:
        looked.append(work)
        return []

    monkeypatch.setattr(deleting, "_files_in", noted)
    _busy_job(store, "job")
    assert delete_job(store, "job").rows == 8
    assert looked == []


def test_a_burial_whose_acknowledgement_was_lost_is_repeated(store: Store) -> None:
    _busy_job(store, "job")
    seen = store.get_job("job")
    first, second = (
        store._write(lambda tx: deletion.bury(tx, seen, "burial", seize=False)) for _ in range(2)
    )
    assert first is not None
    assert first == second
    assert store.remove_job(first) == 8


@pytest.mark.parametrize("pages", [1, 2])
def test_rows_that_vanish_while_they_are_read_are_told(store: Store, store_url: str, pages: int) -> None:
    _busy_job(store, "other")
    _busy_job(store, "job")
    with open_store(store_url, create=False) as another:
        read = another.outcomes("job", batch=3)
        assert sum(len(next(read)) for _ in range(pages)) == 3 * pages
        assert delete_job(store, "job").rows == 8
        with pytest.raises(UnknownJobError, match="'job' was deleted while its rows were read"):
            next(read)
        assert sum(len(page) for page in another.outcomes("other", batch=3)) == 8


def test_rows_of_a_newer_job_are_not_read_as_those_of_a_deleted_one(store: Store, clock: FakeClock) -> None:
    _busy_job(store, "job")
    read = store.outcomes("job", batch=3)
    next(read)
    assert delete_job(store, "job").rows == 8
    clock.pass_seconds(1)
    _busy_job(store, "job")
    with pytest.raises(UnknownJobError, match="was deleted while its rows were read"):
        next(read)


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


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("after", [1, 3, 4])
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
