"""A store that answers and takes no row, because another session holds a lock: on both databases."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.errors import InterruptedShardError, JobPausedError, StoreTransientError
from dray.failures import rules
from dray.job.beginning.opening import open_job
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.kinds import Kind
from dray.requests.sources import RowDefaults
from dray.shard import commit_outage, lease
from dray.shard.backoff import NO_WAIT_VARIABLE, Backoff
from dray.shard.task import TaskResult, try_once
from dray.shard.work import ShardWork
from dray.store import ReplicaRow, ReplicaState, open_store
from dray.store.database import connection, sqlite_file
from tests.support.postgres import PostgresServer
from tests.support.sources import source_of

pytestmark = pytest.mark.integration

ROWS = 20
LIMIT = 3.0
"""Seconds without a row after which the job is paused here."""
_RELEASE_SECONDS = 60.0  # a shard that waits without an end is let go on: the test then fails, and ends


@contextmanager
def _locked(url: str, lock: str) -> Iterator[None]:
    """Another session holds ``lock``: on PostgreSQL on the table of results, on SQLite the writer's."""
    held: Any
    if url.startswith("postgresql"):
        held = psycopg.connect(url)
        held.execute(f"LOCK TABLE results IN {lock} MODE")
    else:
        held = sqlite3.connect(url, isolation_level=None, check_same_thread=False)
        held.execute(f"BEGIN {lock}")
    guard = threading.Timer(_RELEASE_SECONDS, held.rollback)
    guard.start()
    try:
        yield
    finally:
        guard.cancel()
        held.rollback()
        held.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limits shortened."""
    for module in (commit_outage, rules):
        monkeypatch.setattr(module, "STORE_PATIENCE", LIMIT)
    monkeypatch.setattr(connection, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(lease, "STOP_BEFORE_EXPIRY", 88.0)  # of a lease of 90 s: it lapses after 2 s
    monkeypatch.setattr(lease, "RENEW_EVERY", 0.2)
    monkeypatch.setattr(lease, "LOOK_EVERY", 0.05)
    monkeypatch.setattr("dray.shard.task.open_store", partial(open_store, patience=0.3))
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")


class _Replicas:
    """One replica, in this process. ``before`` is called once a shard has its place."""

    def __init__(self, replica: Replica, before: Callable[[], None]) -> None:
        self._replica = replica
        self._before = before

    def find(self, _: str) -> Any:
        self._before()
        return self._replica


@pytest.fixture
def placed() -> list[Callable[[], None]]:
    """What is done once a shard has its place."""
    return []


class Job:
    """A job of one shard, and attempts at that as its task makes them."""

    def __init__(self, settings: JobSettings, replicas: _Replicas) -> None:
        self.backoff = Backoff()
        self._replicas = replicas
        self._settings = settings
        self._job = open_job(settings, resume=True)
        ingest_job(self._job, replicas=1)
        self._with_a_replica()

    def run(self) -> TaskResult:
        """One attempt."""
        with open_store(self._settings.store_url, create=False) as store:
            [shard] = store.shards("job")
        work = ShardWork(job=self._job.lease, shard=shard, store_url=self._job.settings.store_url)
        return try_once(work, self._replicas, self.backoff, logging.getLogger().info)

    def resume(self) -> None:
        """Its driver ends, and another goes on."""
        with open_store(self._settings.store_url, create=False) as store:
            store.release_job(self._job.lease)
        self._job = open_job(self._settings, resume=True)
        self._with_a_replica()

    def _with_a_replica(self) -> None:
        row = ReplicaRow(
            name="r", lane=0, state=ReplicaState.READY, slots=2, node="n", host="h", max_num_seqs=8
        )
        with open_store(self._settings.store_url, create=False) as store:
            store.put_replicas(self._job.lease, [row])


@pytest.fixture
def job(
    store_url: str,
    short: None,
    placed: list[Callable[[], None]],
    tmp_path: Path,
) -> Iterator[Job]:
    """Its replica is the real one on the simulated engine, in this process."""
    inputs = tmp_path / "in.jsonl"
    inputs.write_text("".join(f"{json.dumps({'prompt': f'say {n}'})}\n" for n in range(ROWS)))
    settings = JobSettings(
        source=source_of([str(inputs)], prompt_column="prompt"),
        defaults=RowDefaults(),
        model="simulated",
        output=str(tmp_path / "out"),
        store_url=store_url,
        engine="simulated",
        job_id="job",
    )
    spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments={"max_num_seqs": 8})
    replica = Replica("r", spec, exit_when_dead=False)
    replica.ready()
    replicas = _Replicas(replica, lambda: placed.pop()() if placed else None)
    yield Job(settings, replicas)
    replica.stop()


def _until_it_is_paused(job: Job) -> str:
    with pytest.raises(JobPausedError) as paused:
        while True:
            try:
                found = job.run()
            except InterruptedShardError:
                continue
            raise AssertionError(f"it was not paused: {found}")
    return str(paused.value)


_LOCKS = {"sqlite": ("IMMEDIATE",), "postgresql": ("EXCLUSIVE", "ACCESS EXCLUSIVE")}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("store_url", "lock"),
    [(name, lock) for name, locks in _LOCKS.items() for lock in locks],
    indirect=["store_url"],
)
@pytest.mark.parametrize("when", ["before the shard has its place", "once it has it"])
def test_a_store_that_takes_no_rows_pauses_the_job(
    job: Job, store_url: str, lock: str, when: str, placed: list[Callable[[], None]]
) -> None:
    """Its reads work, or a lease can be renewed: the clock of a store that is away never came to its end."""
    held = _locked(store_url, lock)
    if when.startswith("once"):
        placed.append(lambda: held.__enter__())
    else:
        held.__enter__()
    told = _until_it_is_paused(job)
    assert "pg_locks" in told
    assert told.endswith("`dray resume JOB` goes on")
    held.__exit__(None, None, None)
    job.resume()
    receipt = job.run().receipt
    assert receipt is not None
    assert receipt.rows == ROWS


def test_locks_that_come_and_go_pause_nothing(
    job: Job, store_url: str, placed: list[Callable[[], None]]
) -> None:
    """Each has a clock of its own: rows are taken between them."""
    job.backoff.outage.seconds = LIMIT - 0.5
    held = _locked(store_url, "IMMEDIATE" if not store_url.startswith("postgresql") else "EXCLUSIVE")

    def hold() -> None:
        held.__enter__()
        threading.Timer(0.1, held.__exit__, [None] * 3).start()

    placed.append(hold)
    receipt = job.run().receipt
    assert receipt is not None
    assert receipt.rows == ROWS
    assert job.backoff.outage.seconds == 0.0


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_failover_pauses_nothing(
    job: Job,
    store_url: str,
    postgres: PostgresServer,
    placed: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server is read-only for a moment, as a former primary is."""
    monkeypatch.setattr("dray.shard.task.open_store", open_store)
    read_only = postgres.read_only(store_url.rpartition("/")[2])
    timer = threading.Timer(1.0, read_only.__exit__, [None] * 3)

    def fail_over() -> None:
        read_only.__enter__()
        timer.start()

    placed.append(fail_over)
    receipt = job.run().receipt
    timer.join()
    assert receipt is not None
    assert receipt.rows == ROWS


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_server_that_stays_read_only_pauses_the_job_and_is_called_so(
    job: Job, store_url: str, postgres: PostgresServer, placed: list[Callable[[], None]]
) -> None:
    with ExitStack() as stack:
        read_only = postgres.read_only(store_url.rpartition("/")[2])
        placed.append(lambda: stack.enter_context(read_only))
        told = _until_it_is_paused(job)
    assert "read-only" in told
    job.resume()
    assert job.run().receipt is not None


def test_a_read_that_waits_for_a_lock_leaves_no_process_behind(
    postgres_url: str, postgres: PostgresServer, short: None
) -> None:
    """A server process that waits for a lock does not see that its client has gone: each is a connection."""
    database = postgres_url.rpartition("/")[2]
    with open_store(postgres_url, patience=0.3) as store, _locked(postgres_url, "ACCESS EXCLUSIVE"):
        with pytest.raises(StoreTransientError):
            store._read(lambda tx: tx.connection.exec_driver_sql("SELECT count(*) FROM results").all())
        with postgres.connect(database) as other:
            waiting = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted"
            assert other.execute(waiting).fetchone() == (0,)
