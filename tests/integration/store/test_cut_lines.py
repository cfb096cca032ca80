"""What the store does when the line to PostgreSQL is cut, refused, half closed or dead silent.

Nothing that was acknowledged is lost, nothing counts twice, and every call ends in time: with its result, or
with StoreTransientError.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from dray.errors import FencedError, StoreTransientError, StoreUnreachableError
from dray.store import JobLease, ShardLease, Store, migrate, open_store
from dray.store import commit as commit_module
from dray.store.database import connection as connection_module
from tests.support.cutting_proxy import CuttingProxy, Side
from tests.support.postgres import PostgresServer
from tests.support.stores import claimed, outcome, outcomes, ready_job

pytestmark = pytest.mark.integration
_spawn = multiprocessing.get_context("spawn")


@dataclass
class Line:
    """A store behind a proxy, with a job of 2 shards with 40 rows each, and the same store without one."""

    proxy: CuttingProxy
    store: Store
    url: str
    direct: Store
    job: JobLease

    def settled(self) -> tuple[int, int]:
        """Rows by the rows themselves, and by the counters; equal, or this raises."""
        return self.direct.verify_counts("job").done, self.direct.counts("job").done

    def indexes(self) -> list[int]:
        return self.direct.done_indexes("job", range(80))


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgres.port) as running:
        yield running


@pytest.fixture
def through(postgres_url: str, postgres: PostgresServer, proxy: CuttingProxy) -> str:
    """The URL of a store, through the proxy."""
    return postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")


@pytest.fixture
def line(proxy: CuttingProxy, through: str, postgres_url: str) -> Iterator[Line]:
    with open_store(postgres_url) as direct, open_store(through, patience=5) as store:
        job = ready_job(store, shards=2, rows=40)
        yield Line(proxy=proxy, store=store, url=through, direct=direct, job=job)


@contextmanager
def impatient(line: Line, seconds: float) -> Iterator[None]:
    """The line's store tries for this long only."""
    database = line.store._database
    usual, database.patience = database.patience, seconds
    yield
    database.patience = usual


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which silence is the end of a connection, here."""
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.7)
    monkeypatch.setattr(connection_module, "LONG_SILENCE_SECONDS", 0.7)
    return 0.7


Act = Callable[[Line, ShardLease], object]
ACTS: dict[str, Act] = {
    "commit": lambda line, lease: line.store.commit(lease, outcomes([0, 1])),
    "renew": lambda line, lease: line.store.renew_shard(lease),
    "claim": lambda line, _: line.store.claim_shard(line.job, 1, owner="other"),
    "release": lambda line, lease: line.store.release_shard(lease, cause="SPOT"),
    "read": lambda line, _: line.store.get_job("job").cancel_requested,
    "progress": lambda line, _: line.store.progress("job"),
}
acts = pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))


@pytest.mark.heavy(one_of=3)
@acts
def test_a_cut_line_is_replaced(line: Line, act: Act) -> None:
    lease = claimed(line.store, line.job)
    assert line.proxy.cut() == 1
    act(line, lease)
    act(line, lease)
    rows, counted = line.settled()
    assert rows == counted == len(line.indexes())


@pytest.mark.heavy
@acts
def test_a_server_that_refuses_for_a_while_is_waited_for(line: Line, act: Act) -> None:
    lease = claimed(line.store, line.job)
    line.proxy.refuse()
    line.proxy.cut()
    back = threading.Timer(0.6, line.proxy.resume)
    back.start()
    started = time.monotonic()
    act(line, lease)
    assert 0.5 < time.monotonic() - started < 4
    back.join()


@acts
def test_a_server_that_keeps_refusing_is_transient_in_time(line: Line, act: Act) -> None:
    lease = claimed(line.store, line.job)
    line.proxy.refuse()
    line.proxy.cut()
    with impatient(line, 0.5):
        started = time.monotonic()
        with pytest.raises(StoreTransientError, match="connection failed or was lost"):
            act(line, lease)
        assert time.monotonic() - started < 2
        line.proxy.resume()
        act(line, lease)


@pytest.mark.heavy
@acts
@pytest.mark.parametrize("both", [True, False], ids=["nothing", "answers"])
def test_a_line_that_swallows_everything_ends_in_time(
    line: Line, act: Act, both: bool, short_silence: float
) -> None:
    """Without an end to its waits, psycopg would wait for ever. Behind ``answers`` the server has done it."""
    lease = claimed(line.store, line.job)
    with impatient(line, 0.1):
        line.proxy.stall(both=both)
        started = time.monotonic()
        with pytest.raises(StoreTransientError, match="connection failed or was lost"):
            act(line, lease)
        assert short_silence <= time.monotonic() - started < short_silence + 3
        line.proxy.resume()
        act(line, lease)
        act(line, lease)
    rows, counted = line.settled()
    assert rows == counted == len(line.indexes())


def test_a_connection_that_fell_silent_is_thrown_away_in_order(
    line: Line, short_silence: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Left open, it would be rolled back, in vain, and the pool would log that with a trace."""
    lease = claimed(line.store, line.job)
    with impatient(line, 0):
        line.proxy.stall()
        with pytest.raises(StoreTransientError):
            line.store.commit(lease, outcomes([0]))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_stall_that_ends_is_waited_out(line: Line) -> None:
    lease = claimed(line.store, line.job)
    line.proxy.stall()
    back = threading.Timer(0.5, line.proxy.resume)
    back.start()
    assert line.store.commit(lease, outcomes([0])).inserted == 1
    back.join()
    assert line.proxy.connections() == 1  # the same one


def test_a_slow_answer_is_no_silence(line: Line, short_silence: float) -> None:
    """Bytes that come, however slowly, keep the connection: a page of big rows may take its time."""
    lease = claimed(line.store, line.job)
    big = "x" * 3_000_000
    line.direct.commit(lease, [outcome(index, big) for index in range(4)])
    stop = threading.Event()

    def dribble() -> None:
        while not stop.is_set():
            line.proxy.stall(both=False)
            time.sleep(short_silence * 0.6)
            line.proxy.resume()
            time.sleep(0.005)

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        started = time.monotonic()
        rows = [row for page in line.store.outcomes("job", batch=4) for row in page]
        assert time.monotonic() - started > short_silence
        assert [len(row.response or b"") for row in rows] == [3_000_000] * 4
    finally:
        stop.set()
        thread.join()


@pytest.mark.heavy(one_of=3)
@acts
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_line_that_one_side_has_closed(line: Line, act: Act, side: Side, short_silence: float) -> None:
    lease = claimed(line.store, line.job)
    line.proxy.half_close(side)
    started = time.monotonic()
    act(line, lease)
    assert time.monotonic() - started < short_silence + 3
    rows, counted = line.settled()
    assert rows == counted == len(line.indexes())


@pytest.mark.heavy
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_commit_cut_after_any_byte_is_neither_lost_nor_doubled(
    line: Line, side: Side, rng: random.Random
) -> None:
    """A sweep over the whole exchange. Where the cut falls behind COMMIT, the repetition finds the rows."""
    shards = [claimed(line.store, line.job, number) for number in range(2)]
    pairs = [[index, index + 1] for index in range(0, 80, 2)]

    def commit(pair: list[int], cut: int | None) -> int:
        line.proxy.cut()  # a new connection for each, so that they all exchange the same
        line.store.commit(shards[0], [])
        if cut is not None:
            line.proxy.cut_after(cut, side)
        return line.store.commit(shards[pair[0] // 40], outcomes(pair)).inserted

    for pair in pairs[:2]:
        commit(pair, None)
    line.proxy.cut()
    line.store.commit(shards[0], [])
    before = line.proxy.sent()[side]
    line.store.commit(shards[0], outcomes(pairs[2]))
    total = line.proxy.sent()[side] - before
    step = total // 30
    # The answer to COMMIT is the last 18 bytes; up to 4 less in all, as the times in it are long or short.
    cuts = [*range(rng.randrange(step), total - 20, step), *range(total - 16, total - 4, 4)]
    print(f"{side}: {total} bytes, cut after {cuts}")
    inserted: dict[int, int] = {}
    done = 6
    for cut, pair in zip(cuts, pairs[3:], strict=False):
        inserted[cut] = commit(pair, cut)
        assert not line.proxy.pending_cut(), f"the line was never cut at byte {cut}"
        done += 2
        assert line.indexes() == list(range(done)), f"cut after byte {cut}"
        assert line.settled() == (done, done), f"cut after byte {cut}"
    # The sweep has seen both sides of COMMIT, or it proves little: 0 says that the cut one had come through.
    assert len(inserted) == len(cuts)
    assert set(inserted.values()) == ({0, 2} if side == "server" else {2}), inserted


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_claim_cut_after_any_byte_is_had_once(line: Line, side: Side, rng: random.Random) -> None:
    before = line.proxy.sent()[side]
    lease = claimed(line.store, line.job)
    total = line.proxy.sent()[side] - before
    line.store.release_shard(lease, cause="SPOT")
    step = max(1, total // 15)
    cuts = range(rng.randrange(step), total, step)
    print(f"{side}: {total} bytes, cut after {list(cuts)}")
    for cut in cuts:
        line.proxy.cut_after(cut, side)
        lease = claimed(line.store, line.job, owner=f"worker-{cut}")
        line.proxy.resume()  # where the claim was shorter than the first one
        shard = line.direct.shards("job")[0]
        assert (shard.owner, shard.epoch) == (lease.owner, lease.epoch), f"cut after byte {cut}"
        assert [a.epoch for a in line.direct.attempts("job") if a.ended_at is None] == [lease.epoch]
        line.direct.renew_shard(lease)
        line.direct.release_shard(lease, cause="TEST")
    # One interruption is the first release's: a claim that had to be repeated interrupted nobody.
    assert line.direct.shards("job")[0].interruptions == 1


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_finish_cut_after_any_byte_happens_once(line: Line, side: Side, rng: random.Random) -> None:
    for cut in range(rng.randrange(60), 700, 60):
        job = ready_job(line.direct, f"job-{cut}", shards=1, rows=1)
        lease = claimed(line.store, job)
        line.store.commit(lease, outcomes([0]))
        line.proxy.cut_after(cut, side)
        line.store.finish_shard(lease)
        line.proxy.resume()
        (attempt,) = line.direct.attempts(f"job-{cut}")
        assert (attempt.cause, attempt.done) == ("DONE", 1)


def test_opening_a_store_on_a_dead_line_ends_in_time(through: str, proxy: CuttingProxy) -> None:
    proxy.stall()
    started = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        open_store(f"{through}?connect_timeout=2", patience=0.1)
    assert time.monotonic() - started < 6


def test_closing_a_store_on_a_dead_line_ends_in_time(line: Line) -> None:
    line.proxy.stall()
    started = time.monotonic()
    line.store.close()
    assert time.monotonic() - started < 2


def test_the_kernel_is_told_to_give_up_on_a_silent_network(postgres_url: str) -> None:
    """Packets that vanish cannot be made here without rights: the socket must carry the settings."""
    with open_store(postgres_url) as store:
        wanted = {
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 10,
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 30_000,
        }
        assert {key: _socket_of(store).getsockopt(*key) for key in wanted} == wanted


def test_what_the_url_says_about_the_network_holds(postgres_url: str) -> None:
    with open_store(f"{postgres_url}?keepalives_idle=77&application_name=mine") as store:
        assert _socket_of(store).getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
        names = store._read(lambda tx: tx.connection.exec_driver_sql("SHOW application_name").scalar_one())
        assert names == "mine"


def _socket_of(store: Store) -> socket.socket:
    def duplicate(tx: Any) -> socket.socket:
        return socket.socket(fileno=os.dup(tx.connection.connection.driver_connection.pgconn.socket))

    return store._read(duplicate)


def test_a_transaction_leaves_no_limits_on_its_connection(postgres_url: str) -> None:
    """A pooler may hand the connection to somebody else next."""
    limits = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")

    def shown(tx: Any) -> list[str]:
        return [tx.connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in limits]

    with open_store(postgres_url) as store:
        assert store._write(shown) == ["15s", "30s", "30s"]
        assert store._read(shown) == ["15s", "0", "0"]
        assert store._database.write(shown, long=True) == ["1h", "1h", "0"]


def test_a_lock_that_is_never_given_up_is_transient_in_time(
    postgres_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LOCK_SECONDS", 0.5)
    with open_store(postgres_url, patience=0.2) as store:
        lease = claimed(store, ready_job(store))
        with postgres.connect(postgres_url.rsplit("/", 1)[1]) as other:
            with other.transaction():
                other.execute("SELECT * FROM shards FOR UPDATE")
                started = time.monotonic()
                with pytest.raises(StoreTransientError, match="55P03"):
                    store.commit(lease, outcomes([0]))
                assert 0.4 < time.monotonic() - started < 3
            assert store.commit(lease, outcomes([0])).inserted == 1


def test_a_statement_that_takes_for_ever_is_transient_in_time(
    postgres_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "STATEMENT_SECONDS", 0.5)
    with open_store(postgres_url, patience=0.2) as store:
        lease = claimed(store, ready_job(store))
        with postgres.connect(postgres_url.rsplit("/", 1)[1]) as other:
            other.execute(
                "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$"
            )
            other.execute("CREATE TRIGGER t BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION hang()")
            started = time.monotonic()
            with pytest.raises(StoreTransientError, match="57014"):
                store.commit(lease, outcomes([0]))
            assert 0.4 < time.monotonic() - started < 3
            other.execute("DROP TRIGGER t ON results")
    monkeypatch.undo()  # half a second is too little on a machine with other work
    with open_store(postgres_url) as store:
        assert store.commit(lease, outcomes([0])).inserted == 1


def test_a_change_of_the_schema_takes_as_long_as_it_does(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(connection_module, "STATEMENT_SECONDS", 0.1)
    name = postgres.create_database()
    with postgres.connect(name) as other:
        other.execute(f"SELECT pg_advisory_lock({migrate._LOCK})")
        release = threading.Timer(0.8, other.execute, ["SELECT pg_advisory_unlock_all()"])
        release.start()
        open_store(postgres.url(name), patience=0).close()
        release.join()


def test_what_changes_whole_tables_may_be_silent_for_longer(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing before its end."""
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 0.3)
    line.proxy.stall(both=False)
    back = threading.Timer(1.0, line.proxy.resume)
    back.start()
    try:
        with impatient(line, 0):
            line.store._write(lambda tx: commit_module.forget_ingest(tx, line.job), long=True)
    finally:
        back.join()


def _freeze_in_a_commit(url: str, lease: ShardLease, told: Any) -> None:
    """Stops itself with the shard's row locked, as a frozen machine may; says what came of it."""
    connection_module.STATEMENT_SECONDS = 2.0
    insert = commit_module._insert

    def freeze(tx: connection_module.Tx, rows: list[tuple[Any, ...]]) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        insert(tx, rows)

    commit_module._insert = freeze
    with open_store(url, create=False) as store:
        try:
            told.put(store.commit(lease, outcomes([0], "zombie")))
        except FencedError:
            told.put("fenced")


@pytest.mark.heavy
def test_a_writer_frozen_in_a_commit_does_not_keep_its_shard(postgres_url: str) -> None:
    """Its lease lapses, and PostgreSQL takes its locks away; when it wakes up it is fenced."""
    with open_store(postgres_url) as store:
        job = ready_job(store)
        frozen = store.claim_shard(job, 0, owner="frozen", ttl=0.3)
        assert frozen is not None
        told = _spawn.Queue()
        child = _spawn.Process(target=_freeze_in_a_commit, args=(postgres_url, frozen, told))
        child.start()
        try:
            assert child.pid is not None
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            time.sleep(0.5)  # the lease is over; the lock is not
            started = time.monotonic()
            heir = claimed(store, job, owner="heir")
            assert 0.2 < time.monotonic() - started < 10
            assert store.commit(heir, outcomes([0], "heir")).inserted == 1
            os.kill(child.pid, signal.SIGCONT)
            assert told.get(timeout=30) == "fenced"
            child.join(30)
            assert child.exitcode == 0
        finally:
            child.kill()
        ((row,),) = store.outcomes("job")
        assert (row.response, row.epoch) == (b"heir", heir.epoch)
