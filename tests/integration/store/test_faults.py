"""What the store does when the database, or the process, fails."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import sqlite3
import threading
import time
from multiprocessing.synchronize import Barrier as BarrierType
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import PoolProxiedConnection, event

from dray.errors import (
    FencedError,
    NoStoreError,
    StoreFatalError,
    StoreRefusedError,
    StoreTransientError,
    StoreUnreachableError,
)
from dray.store import JobLease, Store, open_store
from dray.store.database.clock import DatabaseClock
from dray.store.database.connection import Database, Tx
from dray.store.database.urls import parse_url
from tests.support.postgres import PostgresServer
from tests.support.stores import claimed, outcomes, ready_job

pytestmark = pytest.mark.integration
_spawn = multiprocessing.get_context("spawn")


def lose_next_acknowledgement(store: Store) -> list[str]:
    """Makes the next COMMIT succeed in the database and fail for the caller, as a cut connection does."""
    lost: list[str] = []
    dialect = store._database.engine.dialect
    commit = dialect.do_commit

    def commit_then_fail(dbapi_connection: PoolProxiedConnection) -> None:
        commit(dbapi_connection)
        if not lost:
            lost.append("ack")
            error: Any = dialect.loaded_dbapi.OperationalError("acknowledgement lost")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    dialect.do_commit = commit_then_fail  # type: ignore[method-assign]
    return lost


def test_a_commit_whose_acknowledgement_was_lost_counts_once(store: Store) -> None:
    job = ready_job(store)
    lease = claimed(store, job)
    lost = lose_next_acknowledgement(store)
    store.commit(lease, outcomes([0, 1, 2, 3]))
    assert lost
    store.finish_shard(lease)
    counts = store.verify_counts("job")
    assert (counts.done, counts.pending) == (4, 4)
    assert store.attempts("job")[0].done == 4


def test_a_finish_whose_acknowledgement_was_lost_is_no_fault(store: Store) -> None:
    lease = claimed(store, ready_job(store))
    store.commit(lease, outcomes([0, 1, 2, 3]))
    lost = lose_next_acknowledgement(store)
    store.finish_shard(lease)
    assert lost
    assert store.attempts("job")[0].cause == "DONE"


def _claim_once(url: str, lease: JobLease, owner: str, barrier: BarrierType, won: Any) -> None:
    with open_store(url) as store:
        for number in range(4):
            barrier.wait(30)
            if store.claim_shard(lease, number, owner=owner) is not None:
                won.put((number, owner))


@pytest.mark.heavy(one_of=3)
def test_of_two_processes_one_gets_the_shard(store_url: str) -> None:
    with open_store(store_url) as store:
        job = ready_job(store, shards=4)
        barrier, won = _spawn.Barrier(2), _spawn.Queue()
        racers = [
            _spawn.Process(target=_claim_once, args=(store_url, job, owner, barrier, won))
            for owner in ("one", "two")
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(60)
            assert racer.exitcode == 0
        winners = sorted(won.get(timeout=5) for _ in range(4))
        assert won.empty()
        assert [number for number, _ in winners] == [0, 1, 2, 3]
        assert [(shard.number, shard.owner) for shard in store.shards("job")] == winners


def _open_and_count(url: str, barrier: BarrierType, found: Any) -> None:
    barrier.wait(30)
    with open_store(url) as store:
        found.put(len(store.list_jobs()))


@pytest.mark.heavy
def test_processes_may_create_the_schema_at_once(tmp_path: Path, postgres: PostgresServer) -> None:
    urls = [str(tmp_path / "new.db"), postgres.url(postgres.create_database())] * 2
    barrier, found = _spawn.Barrier(len(urls)), _spawn.Queue()
    openers = [_spawn.Process(target=_open_and_count, args=(url, barrier, found)) for url in urls]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(60)
    assert [opener.exitcode for opener in openers] == [0] * len(urls)


def test_a_full_disk_is_fatal_and_the_job_goes_on_after(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "full.db")) as store:
        lease = claimed(store, ready_job(store, shards=1, rows=200))
        store.commit(lease, outcomes(range(50), "x" * 4000))

        def limit(connection: sqlite3.Connection, *_: object) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + pages_free}")

        pages_free = 4
        event.listen(store._database.engine, "checkout", limit)
        with pytest.raises(StoreFatalError, match="disk is full"):
            store.commit(lease, outcomes(range(50, 200), "y" * 4000))
        assert store.verify_counts("job").done == 50
        pages_free = 10_000
        assert store.commit(lease, outcomes(range(200), "z" * 4000)).inserted == 150
        store.finish_shard(lease)
        assert store.verify_counts("job").done == 200


def test_a_commit_waits_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "locked.db"
    with open_store(str(path)) as store:
        lease = claimed(store, ready_job(store))
        blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        blocker.execute("BEGIN IMMEDIATE")
        release = threading.Timer(1.0, lambda: blocker.execute("ROLLBACK"))
        release.start()
        started = time.monotonic()
        assert store.commit(lease, outcomes([0])).inserted == 1
        assert time.monotonic() - started > 0.8
        release.join()
        blocker.close()


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "text.db"
    foreign.write_text("no database " * 1000)
    with pytest.raises(StoreFatalError, match="not an SQLite database"):
        open_store(str(foreign))


def test_an_acknowledged_row_is_on_disk_whatever_the_server_is_set_to(
    postgres_url: str, postgres: PostgresServer
) -> None:
    name = postgres_url.rpartition("/")[2]
    with postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    database = Database(parse_url(postgres_url), clock=DatabaseClock(), patience=1)

    def setting(tx: Tx) -> str:
        return str(tx.connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

    assert database.read(setting) == "off"
    assert [database.write(setting), database.write(setting, long=True)] == ["on", "on"]
    database.close()


def test_a_missing_store_is_not_made_unless_asked(tmp_path: Path, postgres: PostgresServer) -> None:
    with pytest.raises(NoStoreError, match="no such file"):
        open_store(str(tmp_path / "none.db"), create=False)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(NoStoreError, match="no dray tables"):
        open_store(postgres.url(postgres.create_database()), create=False)


def test_sqlite_leaves_no_files_beside_the_store(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "tidy.db")) as store:
        store.commit(claimed(store, ready_job(store)), outcomes([0]))
    assert [path.name for path in tmp_path.iterdir()] == ["tidy.db"]


def test_nobody_home_is_unreachable_and_its_address_is_told_apart(postgres: PostgresServer) -> None:
    url = postgres.url("postgres").replace(f":{postgres.port}/", ":1/")
    password = url.split(":")[2].split("@")[0]
    with pytest.raises(StoreUnreachableError) as caught:
        open_store(url, patience=0.1)
    told = pickle.loads(pickle.dumps(caught.value))  # as it comes from a shard task
    assert str(told).startswith("store postgres (PostgreSQL): the connection failed or was lost")
    assert not [word for word in (password, "127.0.0.1", "@", "***") if word in str(told)]
    assert told.address == "postgresql+psycopg://dray:***@127.0.0.1:1/postgres"


def test_a_server_that_refuses_a_user_or_database_is_not_asked_again(postgres: PostgresServer) -> None:
    password = postgres.url("postgres").split(":")[2].split("@")[0]
    for url, says in (
        (postgres.url("postgres").replace(password, "canary"), "refused the user or password"),
        (postgres.url("postgres").replace("dray:", "canary:"), "refused the user or password"),
        (postgres.url("canary"), "store canary (PostgreSQL): the database does not exist"),
    ):
        started = time.monotonic()
        with pytest.raises(StoreRefusedError, match=re.escape(says)) as caught:
            open_store(url)
        assert time.monotonic() - started < 5
        assert caught.value.exit_code == 2
        assert not [word for word in (password, "127.0.0.1", "@") if word in str(caught.value)]


def test_a_server_without_a_connection_left_says_so_and_is_asked_again() -> None:
    few = {"max_connections": "4", "superuser_reserved_connections": "1", "max_wal_senders": "0"}
    with PostgresServer(settings=few) as server:
        url = server.url(server.create_database())
        open_store(url).close()
        taken = [server.connect() for _ in range(4)]
        with pytest.raises(StoreUnreachableError, match=r"no connection left: raise its max_connections"):
            open_store(url, patience=0.5)

        def leave() -> None:
            for one in taken:
                one.close()

        timer = threading.Timer(1.0, leave)
        timer.start()
        open_store(url).close()
        timer.join()


def test_cut_connections_are_replaced(postgres_url: str, postgres: PostgresServer) -> None:
    with open_store(postgres_url) as store:
        lease = claimed(store, ready_job(store))
        with postgres.connect() as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dray'"
            )
        assert store.commit(lease, outcomes([0])).inserted == 1


@pytest.mark.heavy(one_of=3)
def test_a_server_that_crashes_and_comes_back_loses_nothing(
    postgres_url: str, postgres: PostgresServer
) -> None:
    with open_store(postgres_url, patience=30) as store:
        lease = claimed(store, ready_job(store))
        store.commit(lease, outcomes([0, 1]))
        postgres.kill9()
        restart = threading.Timer(0.5, postgres.start)
        restart.start()
        try:
            assert store.commit(lease, outcomes([1, 2])).inserted == 1
        finally:
            restart.join()
        assert store.verify_counts("job").done == 3


def test_a_server_that_stays_away_is_transient(postgres_url: str, postgres: PostgresServer) -> None:
    with open_store(postgres_url, patience=0.3) as store:
        lease = claimed(store, ready_job(store))
        postgres.stop("fast")
        try:
            with pytest.raises(StoreTransientError):
                store.commit(lease, outcomes([0]))
        finally:
            postgres.start()


@pytest.mark.parametrize(("state", "error"), [("53100", StoreFatalError), ("40001", StoreTransientError)])
def test_what_the_server_says_decides(
    postgres_url: str, postgres: PostgresServer, state: str, error: type[Exception]
) -> None:
    with open_store(postgres_url, patience=0.2) as store:
        lease = claimed(store, ready_job(store))
        with postgres.connect(postgres_url.rsplit("/", 1)[1]) as other:
            other.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION 'no: %', NEW.response USING ERRCODE = '{state}'; END $$"
            )
            other.execute("CREATE TRIGGER t BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION refuse()")
        with pytest.raises(error) as caught:
            store.commit(lease, outcomes([0], "canary"))
        assert "canary" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None  # they would quote the row
        assert store.verify_counts("job").done == 0


def test_a_connection_cut_in_the_middle_of_a_commit_is_no_loss(
    postgres_url: str, postgres: PostgresServer
) -> None:
    with open_store(postgres_url) as store:
        lease = claimed(store, ready_job(store))
        with postgres.connect(postgres_url.rsplit("/", 1)[1]) as other:
            other.execute("CREATE SEQUENCE tries")  # a sequence remembers what a rollback forgets
            other.execute(
                "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "IF nextval('tries') <= 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; "
                "RETURN NEW; END $$"
            )
            other.execute("CREATE TRIGGER t BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION cut()")
        assert store.commit(lease, outcomes([0, 1])).inserted == 2
        assert store.verify_counts("job").done == 2


def test_two_drivers_at_once_leave_no_lease_of_the_older(store_url: str) -> None:
    with open_store(store_url) as store:
        job = ready_job(store, shards=8)
        got: list[object] = []

        def keep_claiming() -> None:
            try:
                for number in range(8):
                    got.append(store.claim_shard(job, number, owner="old"))
            except FencedError as error:
                got.append(error)

        thread = threading.Thread(target=keep_claiming)
        thread.start()
        new = store.claim_job("job", "new", takeover=lambda owner: True)
        thread.join()
        assert store.get_job("job").epoch == new.epoch
        assert all(shard.owner is None for shard in store.shards("job"))
