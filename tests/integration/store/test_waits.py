"""Waits end, or hear that nobody wants them any more: on both databases."""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.driver.events import Event, Warned
from dray.driver.outage import SpoolWatch
from dray.errors import (
    CancelledError,
    ExpiredError,
    FencedError,
    InputError,
    InterruptedShardError,
    JobPausedError,
)
from dray.failures.rules import STORE_PATIENCE
from dray.job import heeding
from dray.job.beginning.opening import open_job
from dray.job.deadline import stop_signals
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows import ingesting
from dray.job.rows.ingesting import ingest_job
from dray.requests import pulse
from dray.requests.ingest import ingest
from dray.requests.reading import queries
from dray.requests.reading.queries import query_rows
from dray.requests.reading.readers import files_of, read_rows
from dray.requests.row_shape import RowShape
from dray.requests.sources import RowDefaults, SqlQuery
from dray.requests.spool.spool import read_shard
from dray.shard.backoff import NO_WAIT_VARIABLE, Backoff
from dray.shard.placing import wait_for_place
from dray.shard.task import try_once
from dray.shard.work import OpenWork, ShardWork
from dray.store import AttemptCause, JobState, ReplicaRow, ReplicaState, Store, open_store
from dray.store.database import clock
from tasks import heeding as page
from tasks.prefect_run import Wish
from tests.support.postgres import PostgresServer
from tests.support.s3_emulator import EmulatorProcess
from tests.support.sources import source_of

pytestmark = pytest.mark.integration

Open = Callable[..., OpenJob]


@pytest.fixture
def open_one(store_url: str, tmp_path: Path) -> Open:
    """A job of 20 rows on the simulated engine, not ingested yet."""
    lines = [
        {
            "custom_id": f"row-{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": f"prompt {n}"}]},
        }
        for n in range(20)
    ]
    inputs = tmp_path / "in.jsonl"
    inputs.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def make(**changes: Any) -> OpenJob:
        given: dict[str, Any] = {
            "source": source_of([str(inputs)]),
            "defaults": RowDefaults(),
            "model": "simulated",
            "output": str(tmp_path / "out"),
            "store_url": store_url,
            "engine": "simulated",
            "job_id": "job",
        }
        return open_job(JobSettings(**{**given, **changes}), resume=True)

    return make


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as the input is read. It has no end: its rows come again and again."""
    begun = threading.Event()

    def endless(*arguments: Any) -> Iterator[Any]:
        rows = list(read_rows(*arguments))
        for again in itertools.count():
            for row in rows:
                assert row.envelope is not None
                custom_id = f"{row.envelope.custom_id}/{again}"
                yield row._replace(envelope=row.envelope._replace(custom_id=custom_id))
            begun.set()
            time.sleep(0.01)

    # By its module: the package has a function of this name.
    monkeypatch.setattr(sys.modules[ingest.__module__], "read_rows", endless)
    return begun


def _left(job: OpenJob) -> list[str]:
    folder = Path(job.work)
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def test_ingest_hears_a_cancel(open_one: Open, reading: threading.Event) -> None:
    job = open_one()
    with open_store(job.settings.store_url, create=False) as store:

        def cancel() -> None:
            reading.wait(30)
            store.request_cancel("job")

        threading.Thread(target=cancel, daemon=True).start()
        with pytest.raises(CancelledError, match="`dray resume job --store"):
            ingest_job(job, replicas=1)
        assert store.shards("job") == []
        assert store.get_job("job").total is None
    assert _left(job) == []


def test_ingest_hears_a_cancel_on_prefects_page(
    open_one: Open, reading: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without a worker is told by nobody: it looks itself."""
    job = open_one()
    monkeypatch.setattr(page, "ASK_EVERY", 0.1)
    monkeypatch.setattr(page, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(page, "_asked", lambda: Wish.CANCEL if reading.is_set() else None)
    with page.heeding(job), pytest.raises(CancelledError):
        ingest_job(job, replicas=1)


def test_ingest_hears_that_its_time_is_over(open_one: Open, reading: threading.Event) -> None:
    job = open_one(completion_window=1.0)
    with pytest.raises(ExpiredError):
        ingest_job(job, replicas=1)


def test_a_job_that_was_cancelled_before_its_ingest_reads_nothing(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_one()
    monkeypatch.setattr(ingesting, "ingest", lambda *_, **__: pytest.fail("it reads"))
    with open_store(job.settings.store_url, create=False) as store:
        store.request_cancel("job")
    with pytest.raises(CancelledError):
        ingest_job(job, replicas=1)


def test_a_clock_that_is_set_forward_expires_nothing_by_itself(
    open_one: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What expires is final, and a server's clock may be wrong: the driver's own has a say."""
    job = open_one(completion_window=3600.0)
    ingest_job(job, replicas=1)
    for dialect, now in clock._NOW.items():
        monkeypatch.setitem(clock._NOW, dialect, f"({now} + 86400.0)")
    with open_store(job.settings.store_url, create=False) as store:
        assert store.stop_signals("job").expired
        assert not stop_signals(store, job).stop
        assert "is past the end of the job's time" in caplog.text
        assert not store.stop_signals("job").expired  # so that shard tasks go on, too
        left = (store.get_job("job").expires_at or 0) - store.now()
        assert 3000 < left <= 3600
        over = replace(job, due=time.monotonic())
        store.postpone(job.lease, 0.0)
        assert stop_signals(store, over).expired  # both agree
        store.claim_job("job", "another", takeover=lambda _: True)
        with pytest.raises(FencedError):
            store.postpone(job.lease, 1.0)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Callable[[OpenJob], None]:
    """Makes the input of a job one that gives nothing, as on a disk that hangs.

    Once it was found to be a file, a pipe that nobody writes to takes its place.
    """
    monkeypatch.setattr(heeding, "STOP_SECONDS", 0.2)

    def hang(job: OpenJob) -> None:
        [path] = job.settings.source.inputs  # type: ignore[union-attr]

        def looked_at(*arguments: Any, **options: Any) -> Any:
            found = files_of(*arguments, **options)
            Path(path).unlink()
            os.mkfifo(path)
            return found

        monkeypatch.setattr(sys.modules[ingest.__module__], "files_of", looked_at)

    return hang


def test_a_cancel_is_heard_while_the_input_hangs(open_one: Open, hung: Callable[[OpenJob], None]) -> None:
    job = open_one()
    hung(job)
    with open_store(job.settings.store_url, create=False) as store:
        timer = threading.Timer(0.3, lambda: store.request_cancel("job"))
        timer.start()
        with pytest.raises(CancelledError):
            ingest_job(job, replicas=1)
        timer.join()


def test_an_input_that_hangs_has_an_end(
    open_one: Open, hung: Callable[[OpenJob], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "READ_SECONDS", 0.3)
    job = open_one()
    hung(job)
    with pytest.raises(InputError, match="gave no row for"):
        ingest_job(job, replicas=1)


def test_a_cancel_is_heard_while_a_query_runs(
    open_one: Open, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heeding, "STOP_SECONDS", 60.0)  # the query ends before it
    query = "select pg_sleep(60)::text as text"
    job = open_one(source=source_of(postgres.url(), prompt_column="text", query=query))
    with open_store(job.settings.store_url, create=False) as store:
        timer = threading.Timer(0.3, lambda: store.request_cancel("job"))
        timer.start()
        began = time.monotonic()
        with pytest.raises(CancelledError):
            ingest_job(job, replicas=1)
        timer.join()
    assert time.monotonic() - began < 50


def test_a_database_that_takes_no_connection_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens, and says nothing."""
    monkeypatch.setitem(queries._LIMITS, "psycopg", {"connect_timeout": 2})
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"postgresql://user@127.0.0.1:{deaf.getsockname()[1]}/data"
        with pytest.raises(InputError, match=r"the query cannot be read: .*timeout"):
            next(query_rows(SqlQuery(url=url, query="select 1", shape=RowShape(prompt_column="x")), 1 << 20))


@pytest.fixture
def placing(open_one: Open) -> Iterator[tuple[Store, OpenWork]]:
    """A shard that waits for a place, and no replica that is ready."""
    job = open_one()
    [shard] = ingest_job(job, replicas=1)
    with open_store(job.settings.store_url, create=False) as store:
        store.put_replicas(job.lease, [_replica(ReplicaState.GONE)])
        yield store, OpenWork(store=store, job=job.lease, shard=shard, replicas=_none(), owner="worker")


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    (tmp_path / "s3" / "bucket").mkdir(parents=True)
    server = EmulatorProcess(tmp_path / "s3")
    yield server
    server.stop()


class _Alive:
    """A replica that lives: nothing is ever fed to it."""

    name = "r"

    def find(self, _: str) -> Any:
        return self

    def check(self) -> None: ...

    def heartbeat(self, _: str) -> None: ...

    def abort(self, _: str) -> None: ...


@pytest.mark.heavy
def test_a_spool_that_cannot_be_read_pauses_the_job_after_half_an_hour(
    open_one: Open,
    emulator: EmulatorProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The object store is away, the database answers all the time: it has a clock of its own."""
    job = open_one()
    [shard] = ingest_job(job, replicas=1)
    (emulator.root / "bucket" / "spool.jsonl").write_bytes(Path(shard.uri).read_bytes())
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    backoff = Backoff()
    told: list[Event] = []
    with open_store(job.settings.store_url, create=False) as store:
        store.put_replicas(job.lease, [_replica(ReplicaState.READY)])
        store.move_shards(job.lease, {shard.uri: "s3://bucket/spool.jsonl"})
        [shard] = store.shards("job")
        assert sum(map(len, read_shard(shard.uri, 0, shard.length, options=emulator.options))) == 20
        emulator.stop()
        work = ShardWork(
            job=job.lease, shard=shard, store_url=job.settings.store_url, objects=emulator.options
        )
        watch = SpoolWatch("job", told.append)
        watch.look(store)
        with pytest.raises(InterruptedShardError, match=r"s3://bucket/spool.jsonl cannot be read"):
            try_once(work, _Alive(), backoff, logging.getLogger().info)
        watch.look(store)
        [warned] = told
        assert isinstance(warned, Warned)
        assert "could not be read by 1 attempts" in warned.line
        assert backoff.unread_since is not None
        backoff.unread_since -= STORE_PATIENCE
        with pytest.raises(JobPausedError, match=r"cannot be read for 30 minutes.*`dray resume JOB` goes on"):
            try_once(work, _Alive(), backoff, logging.getLogger().info)
        assert store.causes("job") == {AttemptCause.SPOOL_AWAY: 2}
        assert store.charges("job") == []


def _replica(state: ReplicaState) -> ReplicaRow:
    return ReplicaRow(name="r", lane=0, state=state, slots=2, node="n", host="h")


def _none() -> Any:
    return None


def test_a_shard_waits_while_a_replica_is_ready_and_busy(placing: tuple[Store, OpenWork]) -> None:
    store, work = placing
    busy = ReplicaRow(name="r", lane=0, state=ReplicaState.READY, slots=0, node="n", host="h")
    store.put_replicas(work.job, [busy])
    ended: list[object] = []
    thread = threading.Thread(target=lambda: ended.append(wait_for_place(work)), daemon=True)
    thread.start()
    thread.join(1.5)
    assert ended == []
    store.put_replicas(work.job, [_replica(ReplicaState.READY)])
    thread.join(30)
    assert len(ended) == 1
    assert store.get_job("job").state is JobState.IN_PROGRESS
