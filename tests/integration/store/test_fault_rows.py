"""Rows of the fault matrix that end at the database or at the disk, one test each.

What is left to others: disks and servers that fail in ``test_faults.py``, lines in ``test_cut_lines.py``,
interleavings in ``test_histories.py``, newer schemas in ``test_migrations.py``.
"""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from dray.driver.events import Event
from dray.driver.outage import StoreOutage
from dray.errors import FencedError, JobFailedError, StoreFatalError, StoreTransientError
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.requests.outputs.files import OutputFormat, write_outputs
from dray.requests.sources import RowDefaults, source_of
from dray.storage import files as files_module
from dray.store import JobLease, JobState, ShardLease, ShardState, Store, open_store
from dray.store.database import sqlite_file
from tests.support.clocks import replace_here
from tests.support.command import write_requests
from tests.support.history import check_history
from tests.support.postgres import Mode, PostgresServer
from tests.support.stores import FakeClock, claimed, failure, outcome, outcomes, ready_job

pytestmark = pytest.mark.integration
_spawn = multiprocessing.get_context("spawn")
ROOT = Path(__file__).parents[3]


# ---- the database is locked ----


@pytest.mark.parametrize("seconds", [1, 3])
def test_db_locked_for_a_while_is_waited_out(tmp_path: Path, seconds: int) -> None:
    """Also by a process that does not take turns, and reads and renewals wait as commits do."""
    path = tmp_path / "locked.db"
    with open_store(str(path), patience=0.1) as store:
        job = ready_job(store)
        lease = claimed(store, job)
        with _locked_sqlite(path) as release:
            timer = threading.Timer(seconds, release)
            timer.start()
            started = time.monotonic()
            threads = [
                threading.Thread(target=act)
                for act in (
                    lambda: store.commit(lease, outcomes([0, 1])),
                    lambda: store.renew_shard(lease),
                    lambda: store.claim_shard(job, 1, owner="other"),
                )
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            assert time.monotonic() - started > seconds * 0.9
            timer.join()
        assert store.done_indexes("job", range(8)) == [0, 1]
        assert store.shards("job")[1].owner == "other"


def test_db_locked_for_longer_is_transient_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.5)
    path = tmp_path / "locked.db"
    with open_store(str(path), patience=0.2) as store:
        lease = claimed(store, ready_job(store))
        with _locked_sqlite(path):
            started = time.monotonic()
            with pytest.raises(StoreTransientError, match="SQLITE_BUSY"):
                store.commit(lease, outcomes([0]))
            assert 0.4 < time.monotonic() - started < 5
            assert store.done_indexes("job", range(8)) == []  # readers are let in
        assert store.commit(lease, outcomes([0])).inserted == 1
        assert store.verify_counts("job").done == 1


def test_a_query_that_stays_open_keeps_commits_out_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(sqlite_file, "_WAL_SAFE", (99,))  # so a rollback journal
    path = tmp_path / "read.db"
    with open_store(str(path), patience=0.1) as store, closing(sqlite3.connect(path)) as reader:
        lease = claimed(store, ready_job(store, shards=4))
        query = reader.execute("SELECT * FROM shards")
        query.fetchone()
        told: list[Event] = []
        with StoreOutage(told.append).borne():
            store.commit(lease, outcomes([0]))
        [away] = told
        assert str(path) in str(away.text)
        assert "an open query that only reads: end that program or its query; `dray export`" in str(away.text)
        query.fetchall()
        assert store.commit(lease, outcomes([0])).inserted == 1


@contextmanager
def _locked_sqlite(path: Path) -> Iterator[Callable[[], None]]:
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")

    def release() -> None:
        if blocker.in_transaction:
            blocker.execute("ROLLBACK")

    yield release
    release()
    blocker.close()


def test_db_locked_by_another_transaction_on_postgresql(postgres_url: str, postgres: PostgresServer) -> None:
    with open_store(postgres_url) as store:
        lease = claimed(store, ready_job(store))
        with postgres.connect(postgres_url.rsplit("/", 1)[1]) as other:
            other.execute("BEGIN")
            other.execute("SELECT * FROM shards FOR UPDATE")
            timer = threading.Timer(1.0, other.execute, ["ROLLBACK"])
            timer.start()
            started = time.monotonic()
            assert store.commit(lease, outcomes([0])).inserted == 1
            assert time.monotonic() - started > 0.8
            timer.join()


# ---- the database is full, or read-only ----


def test_sqlite_is_full_at_any_page(tmp_path: Path) -> None:
    """However far a commit gets: it is fatal, nothing of it stays, and it goes through once there is room."""
    with open_store(str(tmp_path / "full.db")) as store:
        lease = claimed(store, ready_job(store, shards=1, rows=1000))
        free = 1 << 30

        def limit(connection: sqlite3.Connection, *_: object) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + free}")

        event.listen(store._database.engine, "checkout", limit)
        expected = 0
        for pages in range(12):
            free = pages
            batch = [outcome(index, "x" * 4000) for index in range(expected, expected + 40)]
            with pytest.raises(StoreFatalError, match="SQLITE_FULL"):
                store.commit(lease, batch)
            assert store.verify_counts("job").done == expected, f"{pages} pages free"
            free = 1 << 30
            assert store.commit(lease, batch).inserted == 40
            expected += 40
        assert store.verify_counts("job").done == expected


def test_postgresql_is_full_and_goes_on_after(postgres_url: str, postgres: PostgresServer) -> None:
    with open_store(postgres_url, patience=5) as store:
        lease = claimed(store, ready_job(store))
        store.commit(lease, outcomes([0]))
        with postgres.connect(postgres_url.rsplit("/", 1)[1]) as other:
            other.execute(
                "CREATE FUNCTION full_() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$"
            )
            other.execute("CREATE TRIGGER t BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION full_()")
            started = time.monotonic()
            with pytest.raises(StoreFatalError, match=r"disk is full: free space, then resume.*53100"):
                store.commit(lease, outcomes([1, 2]))
            assert time.monotonic() - started < 2  # no retry helps
            assert store.verify_counts("job").done == 1
            other.execute("DROP TRIGGER t ON results")
        assert store.commit(lease, outcomes([1, 2])).inserted == 2
        assert store.verify_counts("job").done == 3


def test_a_file_that_is_read_only(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        job = ready_job(store)
        lease = claimed(store, job)
        store.commit(lease, outcomes([0]))
        engine = store._database.engine

        def forbid(connection: sqlite3.Connection, *_: object) -> None:
            connection.execute("PRAGMA query_only = ON")

        event.listen(engine, "checkout", forbid)  # not by the file's mode: root may write to anything
        for act in (
            lambda: store.commit(lease, outcomes([1])),
            lambda: store.claim_shard(job, 1, owner="other"),
            lambda: store.renew_job(job),
        ):
            started = time.monotonic()
            with pytest.raises(StoreFatalError, match="read-only"):
                act()
            assert time.monotonic() - started < 2
        assert store.done_indexes("job", range(8)) == [0]
        event.remove(engine, "checkout", forbid)
        engine.dispose()
        assert store.commit(lease, outcomes([0, 1])).inserted == 1
        assert store.verify_counts("job").done == 2


def test_a_failover_of_postgresql(postgres_url: str, postgres: PostgresServer) -> None:
    """Connections lead to the former primary, which is a standby now, until they are made anew."""
    name = postgres_url.rsplit("/", 1)[1]
    with open_store(postgres_url, patience=20) as store, open_store(postgres_url, patience=0.5) as hasty:
        job = ready_job(store)
        lease = claimed(store, job)
        store.commit(lease, outcomes([0]))
        with postgres.read_only(name):
            for act in (
                lambda: hasty.commit(lease, outcomes([1])),
                lambda: hasty.claim_shard(job, 1, owner="other"),
                lambda: hasty.renew_job(job),
            ):
                with pytest.raises(StoreTransientError, match="read-only"):
                    act()
            assert store.done_indexes("job", range(8)) == [0]
        assert hasty.commit(lease, outcomes([0, 1])).inserted == 1
        read_only = postgres.read_only(name)
        read_only.__enter__()
        timer = threading.Timer(1.0, read_only.__exit__, [None] * 3)
        timer.start()
        assert store.commit(lease, outcomes([2])).inserted == 1
        timer.join()
        assert store.verify_counts("job").done == 3


# ---- the server goes away ----


@pytest.mark.heavy
def test_terminated_backends_cost_nothing(
    postgres_url: str, postgres: PostgresServer, rng: random.Random
) -> None:
    """``pg_terminate_backend`` at random moments, under two writers that never pause."""
    name = postgres_url.rsplit("/", 1)[1]
    with open_store(postgres_url) as store, _writers(postgres_url, store, 200, pause=0.01) as writers:
        with postgres.connect() as other:
            killed = 0
            while not writers.over() and killed < 40:  # faster than they can connect, they would never end
                time.sleep(rng.uniform(0, 0.15))
                killed += other.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s", [name]
                ).fetchone()[0]  # type: ignore[index]
        writers.check()
        print(f"{killed} backends terminated")
        assert killed >= 20


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_server_restarted_under_writers(postgres_url: str, postgres: PostgresServer, mode: Mode) -> None:
    with (
        open_store(postgres_url, patience=30) as store,
        _writers(postgres_url, store, 200, pause=0.01) as writers,
    ):
        restarts = 0
        while not writers.over() and restarts < 4:
            time.sleep(0.4)
            postgres.restart(mode)
            restarts += 1
        writers.check()
        assert restarts >= 2


class _Writers:
    """Two threads, each with a shard and a store of its own, that commit a row at a time, and remember."""

    def __init__(self, url: str, store: Store, rows: int, pause: float) -> None:
        self._store = store
        self._rows = rows
        self._pause = pause
        self._job = ready_job(store, shards=2, rows=rows)
        self._acked: list[int] = []
        self._wrong: list[BaseException] = []
        self._threads = [threading.Thread(target=self._write, args=(url, number)) for number in range(2)]
        for thread in self._threads:
            thread.start()

    def _write(self, url: str, number: int) -> None:
        try:
            with open_store(url, patience=30) as store:
                lease = claimed(store, self._job, number, f"writer-{number}")
                for index in range(number * self._rows, (number + 1) * self._rows):
                    store.commit(lease, [outcome(index)])
                    self._acked.append(index)
                    time.sleep(self._pause)
                store.finish_shard(lease)
        except BaseException as error:  # noqa: BLE001  told to the test's own thread
            self._wrong.append(error)

    def over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)

    def check(self) -> None:
        self.join()
        assert self._wrong == []
        assert sorted(self._acked) == self._store.done_indexes("job", range(2 * self._rows))
        assert self._store.verify_counts("job").pending == 0
        shards = self._store.shards("job")
        assert [(shard.state, shard.done) for shard in shards] == [(ShardState.DONE, self._rows)] * 2
        # Nobody was charged for the server: each shard took one attempt, whose counters are whole.
        causes = [(attempt.cause, attempt.done) for attempt in self._store.attempts("job")]
        assert [cause for cause in causes if cause[0] == "DONE"] == [("DONE", self._rows)] * 2


@contextmanager
def _writers(url: str, store: Store, rows: int, pause: float = 0.0) -> Iterator[_Writers]:
    writers = _Writers(url, store, rows, pause)
    try:
        yield writers
    finally:
        writers.join()


# ---- work that comes twice, or too late ----


def test_duplicate_delivery_of_a_shard(store_url: str) -> None:
    """Two workers take turns at one shard, each in the belief that the other is dead. One outcome a row."""
    with open_store(store_url) as store:
        job = ready_job(store, shards=1, rows=40)
        fenced = []
        held = {"one": threading.Event(), "two": threading.Event()}
        until = time.monotonic() + 60

        def work(owner: str, other: str) -> None:
            with open_store(store_url) as mine:
                while time.monotonic() < until:
                    lease = mine.claim_shard(job, 0, owner=owner, ttl=0.005)
                    if lease is None:
                        if mine.shards("job")[0].state is ShardState.DONE:
                            return
                        continue
                    held[owner].set()
                    try:
                        done = set(mine.done_indexes("job", range(40)))
                        for index in range(40):
                            if index not in done:
                                mine.commit(lease, [outcome(index, f"{owner} {lease.epoch}")])
                                # SQLite's lock is not fair: without this, one may do it all in one breath.
                                held[other].wait(30)
                        mine.finish_shard(lease)
                    except FencedError:
                        fenced.append((owner, lease.epoch))

        threads = [threading.Thread(target=work, args=turns) for turns in (("one", "two"), ("two", "one"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert store.verify_counts("job").pending == 0
        rows = [row for page in store.outcomes("job") for row in page]
        assert [row.index for row in rows] == list(range(40))
        # What is there was said by the holder under whose epoch it stands (I3).
        owners = {attempt.epoch: attempt.owner for attempt in store.attempts("job")}
        for row in rows:
            assert (row.response or b"").decode() == f"{owners[row.epoch]} {row.epoch}"
        assert sum(attempt.done for attempt in store.attempts("job")) == 40
        assert fenced, "nobody was ever in the other's way"


def test_duplicate_delivery_of_a_shard_to_the_same_owner(store_url: str) -> None:
    """Ray may run a task again under the name of the one that it believes dead."""
    with open_store(store_url) as store:
        job = ready_job(store, shards=1)
        first = claimed(store, job, owner="worker")
        second = claimed(store, job, owner="worker")
        with pytest.raises(FencedError):
            store.commit(first, outcomes([0], "first"))
        assert store.commit(second, outcomes([0], "second")).inserted == 1
        late: list[Callable[[], None]] = [
            lambda: store.renew_shard(first),
            lambda: store.finish_shard(first),
            lambda: store.release_shard(first, cause="SPOT"),
        ]
        for call in late:
            with pytest.raises(FencedError):
                call()
        assert [row.response for page in store.outcomes("job") for row in page] == [b"second"]


def test_duplicate_delivery_of_results(store_url: str) -> None:
    """The same result twice in a batch, in two batches, and under two epochs: the first stays."""
    with open_store(store_url) as store:
        job = ready_job(store, shards=1)
        lease = claimed(store, job, owner="one")
        twice = [outcome(0, "first"), outcome(0, "again"), failure(0)]
        assert store.commit(lease, twice).inserted == 1
        assert store.commit(lease, [failure(0), outcome(1, "first")]).inserted == 1
        store.release_shard(lease, cause="SPOT")
        heir = claimed(store, job, owner="two")
        assert store.commit(heir, outcomes([0, 1, 2], "heir")).inserted == 1
        rows = [row for page in store.outcomes("job") for row in page]
        assert [(row.response, row.epoch) for row in rows] == [
            (b"first", lease.epoch),
            (b"first", lease.epoch),
            (b"heir", heir.epoch),
        ]
        counts = store.verify_counts("job")
        assert (counts.done, counts.failed) == (3, 0)
        assert [attempt.done for attempt in store.attempts("job")] == [2, 1]


def _stop_and_go_on(url: str, job: JobLease, told: Any) -> None:
    """A worker that is frozen for as long as somebody likes, between what it did and what it wants to do."""
    with open_store(url, create=False) as store:
        lease = store.claim_shard(job, 0, owner="zombie", ttl=1.0)
        assert lease is not None
        store.commit(lease, outcomes([0], "zombie"))
        os.kill(os.getpid(), signal.SIGSTOP)
        said = []
        for act in (
            lambda: store.commit(lease, outcomes([1, 2], "zombie")),
            lambda: store.renew_shard(lease),
            lambda: store.finish_shard(lease),
            lambda: store.release_shard(lease, cause="SPOT"),
        ):
            try:
                act()
            except FencedError:
                said.append("fenced")
            else:
                said.append("done")
        told.put((lease.epoch, said))


@pytest.mark.heavy(one_of=3)
def test_zombie_worker(store_url: str) -> None:
    """Stopped past its lease while another finishes its shard; what it then says changes nothing."""
    with open_store(store_url) as store:
        job = ready_job(store, shards=1)
        told = _spawn.Queue()
        child = _spawn.Process(target=_stop_and_go_on, args=(store_url, job, told))
        child.start()
        assert child.pid is not None
        try:
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert store.claim_shard(job, 0, owner="early") is None or _lapsed(store)
            heir = _claim_when_lapsed(store, job)
            assert store.done_indexes("job", range(4)) == [0]
            store.commit(heir, outcomes([1, 2, 3], "heir"))
            store.finish_shard(heir)
            os.kill(child.pid, signal.SIGCONT)
            epoch, said = told.get(timeout=30)
            assert said == ["fenced"] * 4
            child.join(30)
            assert child.exitcode == 0
        finally:
            child.kill()
        rows = [row for page in store.outcomes("job") for row in page]
        assert [(row.response, row.epoch) for row in rows] == [
            (b"zombie", epoch),
            *[(b"heir", heir.epoch)] * 3,
        ]
        assert store.verify_counts("job").done == 4
        assert store.shards("job")[0].state is ShardState.DONE


def _lapsed(store: Store) -> bool:
    """Whether the claim before came late: the machine may have been busy for the lease's second."""
    return store.shards("job")[0].owner == "early"


def _claim_when_lapsed(store: Store, job: JobLease) -> ShardLease:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        lease = store.claim_shard(job, 0, owner="heir", ttl=60)
        if lease is not None:
            return lease
        time.sleep(0.05)
    raise AssertionError("the lease never lapsed")


def _freeze_with_the_file_locked(path: str) -> None:
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)
    blocker.execute("ROLLBACK")


@pytest.mark.heavy(one_of=3)
def test_zombie_that_holds_sqlites_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has no server that takes it away: the others end in time, and go on when it is gone."""
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.5)
    path = str(tmp_path / "frozen.db")
    with open_store(path, patience=0.2) as store:
        lease = claimed(store, ready_job(store))
        child = _spawn.Process(target=_freeze_with_the_file_locked, args=(path,))
        child.start()
        assert child.pid is not None
        try:
            os.waitpid(child.pid, os.WUNTRACED)
            started = time.monotonic()
            with pytest.raises(StoreTransientError, match="SQLITE_BUSY"):
                store.commit(lease, outcomes([0]))
            assert time.monotonic() - started < 5
        finally:
            child.kill()
            child.join(30)
        assert store.commit(lease, outcomes([0])).inserted == 1


# ---- clocks ----


def _until(store: Store) -> float:
    """The end of the first shard's lease, by the database's clock."""
    return store.shards("job")[0].lease_until or 0.0


@pytest.mark.parametrize("skew", [3600.0, -3600.0])
def test_clock_skew_of_a_worker_moves_no_lease(
    store_url: str, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wall clocks of workers are an hour off, each its own way, and jump: only the database's counts."""
    real = time.time
    ahead = {"seconds": skew}
    replace_here(monkeypatch, time, "time", lambda: real() + ahead["seconds"])
    with open_store(store_url) as store:
        job = ready_job(store)
        lease = store.claim_shard(job, 0, owner="one", ttl=60)
        assert lease is not None
        assert abs(_until(store) - real() - 60) < 5
        ahead["seconds"] = -skew  # the next worker's clock
        assert store.claim_shard(job, 0, owner="two", ttl=60) is None
        assert store.commit(lease, outcomes([0])).inserted == 1
        store.renew_shard(lease)
        assert abs(_until(store) - real() - 60) < 5
        short = store.claim_shard(job, 1, owner="one", ttl=0.2)
        assert short is not None
        ahead["seconds"] = skew
        time.sleep(0.3)
        assert store.claim_shard(job, 1, owner="two", ttl=60) is not None
        ((row,),) = store.outcomes("job")
        assert abs(row.committed_at - real()) < 5


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_database_whose_clock_jumps_loses_nothing(store: Store, clock: FakeClock, jump: float) -> None:
    """Forwards every lease lapses, and rows are computed twice at most; backwards none does for a while."""
    job = ready_job(store, shards=1)
    held = claimed(store, job, owner="one")
    store.commit(held, outcomes([0], "one"))
    clock.pass_seconds(jump)
    store.commit(held, outcomes([1], "one"))
    assert store.shards("job")[0].lease_until == clock.time + held.ttl
    assert store.claim_shard(job, 0, owner="two") is None  # the commit has set the lease right
    clock.pass_seconds(jump)
    heir = store.claim_shard(job, 0, owner="two")
    assert (heir is not None) == (jump > 0)
    if heir is not None:
        with pytest.raises(FencedError):
            store.commit(held, outcomes([2], "one"))
    store.commit(heir or held, outcomes([0, 1, 2, 3], "last"))
    rows = [row.response for page in store.outcomes("job") for row in page]
    assert rows == [b"one", b"one", b"last", b"last"]
    assert store.verify_counts("job").done == 4


# ---- the disk of the outputs is full ----


class _SmallDisk:
    """A disk with ``free`` bytes for files that are being written; the rest of a write over it is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 40
        self.buffered = 1 << 20
        disk = self
        plain = Path.open

        class File(io.FileIO):
            def write(self, data: Any, /) -> int:
                view = memoryview(data).cast("B")
                room = min(len(view), disk.free)
                if not room and len(view):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                disk.free -= room
                return super().write(view[:room])

        def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if path.suffix != ".part":
                return plain(path, mode, *rest, **options)
            return io.BufferedWriter(File(path, "x"), self.buffered)

        monkeypatch.setattr(Path, "open", opened)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> _SmallDisk:
    return _SmallDisk(monkeypatch)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("buffered", [512, 1 << 20])
def test_output_disk_full_at_any_byte(
    tmp_path: Path, disk: _SmallDisk, kind: OutputFormat, buffered: int, rng: random.Random
) -> None:
    """Both outputs are published whole or not at all; those of before stay; nothing is left beside them."""
    disk.buffered = buffered
    with open_store(str(tmp_path / "store.db")) as store:
        lease = claimed(store, ready_job(store, shards=1, rows=40))
        text = '{"choices": [{"text": "%s", "finish_reason": "stop"}]}'
        batch = [outcome(i, text % rng.randbytes(40).hex()) if i % 3 else failure(i) for i in range(40)]
        store.commit(lease, batch)

        def write(folder: Path) -> dict[str, bytes]:
            write_outputs(store.outcomes("job", batch=7), directory=str(folder), format=kind)
            return _content(folder)

        whole = write(tmp_path / "whole")
        size = sum(map(len, whole.values()))
        step = max(1, size // 60)
        frees = [0, 1, *range(rng.randrange(2, step + 2), size, step), size - 2, size - 1]
        print(f"{size} bytes; disks with {frees} free")
        old = dict.fromkeys(whole, b"of an earlier run")
        for free in frees:
            folder = tmp_path / f"full-{free}"
            folder.mkdir()
            before = old if free % 2 else {}
            for name, content in before.items():
                (folder / name).write_bytes(content)
            disk.free = free
            with pytest.raises(JobFailedError, match="cannot be written: No space left on device"):
                write(folder)
            assert _content(folder) == before, f"{free} of {size} bytes were free"
            shutil.rmtree(folder)
        disk.free = size
        assert write(tmp_path / "enough") == whole


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("call", range(1, 5))
def test_output_disk_full_when_it_is_synced(
    tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems that allocate late say so only then. The first two syncs come before any rename."""
    real, calls = os.fsync, iter(range(1, 100))

    def fsync(descriptor: int) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with open_store(str(tmp_path / "store.db")) as store:
        store.commit(claimed(store, ready_job(store)), [outcome(0, "{}"), failure(1)])
        folder = tmp_path / "out"
        with pytest.raises(JobFailedError, match="No space left on device"):
            write_outputs(store.outcomes("job"), directory=str(folder))
        published = _content(folder)
        assert not [name for name in published if name.endswith(".part")]
        write_outputs(store.outcomes("job"), directory=str(folder))
        whole = _content(folder)
        assert published.items() <= whole.items()  # whole files, if any
        assert len(whole) == 2
        if call <= 2:
            assert published == {}


def test_output_disk_full_at_the_end_of_a_job(tmp_path: Path, disk: _SmallDisk, rng: random.Random) -> None:
    """The job is not completed until outputs and report are there, and the same command then ends it."""
    requests = write_requests(tmp_path / "in.jsonl", 40)
    output = tmp_path / "out"
    settings = JobSettings(
        source=source_of([str(requests)]),
        defaults=RowDefaults(),
        model="simulated",
        engine="simulated",
        output=str(output),
        store_url=f"sqlite:///{tmp_path / 'dray.db'}",
        job_id="job",
    )
    job = open_job(settings)
    (shard,) = ingest_job(job, replicas=1)
    with open_store(settings.store_url) as store:
        lease = claimed(store, job.lease, shard.number)
        store.commit(lease, outcomes(range(40), '{"choices": [{"text": "a"}]}'))
        store.finish_shard(lease)
        failed = 0
        for free in sorted(rng.sample(range(20_000), 8)):
            disk.free = free
            with pytest.raises(JobFailedError, match="No space left"):
                finalise_job(job, Timeline())
            failed += 1
            assert store.get_job("job").state is JobState.FINALIZING
            assert not list(output.glob(".*.part"))
        assert failed == 8
        disk.free = 1 << 40
        finalise_job(job, Timeline())
        assert store.get_job("job").state is JobState.COMPLETED
    (tmp_path / "history").mkdir()
    with pytest.raises(AssertionError, match="I3"):  # all else holds: nothing was noted here
        check_history(tmp_path / "history", settings.store_url, "job", output)


# ---- the process is killed while it writes outputs ----

_WRITE = """
import sys
from dray.requests.outputs.files import write_outputs
from dray.store import open_store
with open_store(sys.argv[1], create=False) as store:
    write_outputs(store.outcomes("job"), directory=sys.argv[2])
"""


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("trigger", "published"),
    [
        ("finalise.written", []),
        ("finalise.renamed", ["errors.jsonl"]),
        ("finalise.renamed:2", ["errors.jsonl", "output.jsonl"]),
    ],
)
def test_killed_while_outputs_are_written(tmp_path: Path, trigger: str, published: list[str]) -> None:
    """What has its name is whole; what has none is cleared up by the next, which writes the same bytes."""
    url, folder = str(tmp_path / "store.db"), tmp_path / "out"
    with open_store(url) as store:
        store.commit(claimed(store, ready_job(store)), [outcome(0, "{}"), failure(1)])
        write_outputs(store.outcomes("job"), directory=str(tmp_path / "whole"))
        whole = _content(tmp_path / "whole")
        ended = subprocess.run(
            [sys.executable, "-c", _WRITE, url, str(folder)],
            env={**os.environ, "DRAY_TRIGGER": trigger, "PYTHONPATH": str(ROOT)},
            timeout=60,
        )
        assert ended.returncode == -signal.SIGKILL
        left = _content(folder)
        assert sorted(name for name in left if not name.endswith(".part")) == published
        assert all(left[name] == whole[name] for name in published)
        assert len(left) == 2  # the others are there under temporary names
        write_outputs(store.outcomes("job"), directory=str(folder))
        assert _content(folder) == whole


def test_what_somebody_is_still_writing_is_not_cleared_up(tmp_path: Path) -> None:
    """Two drivers may write at once, one of them fenced without knowing: both end with whole files."""
    target = str(tmp_path / "output.jsonl")
    with files_module.write_atomic(target) as first:
        first.write(b"first")
        with files_module.write_atomic(target) as second:
            second.write(b"second")
            assert len(list(tmp_path.iterdir())) == 2
        assert Path(target).read_bytes() == b"second"
    assert _content(tmp_path) == {"output.jsonl": b"first"}
