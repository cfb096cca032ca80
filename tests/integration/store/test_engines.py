"""One engine a process for each database: shared by its stores, closed with the last, new in a child."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from dray.shard import task
from dray.shard.backoff import Backoff
from dray.shard.work import AttemptEnd, AttemptResult, OpenWork, ShardWork
from dray.store import Store, open_store
from dray.store.database.connection import Tx
from dray.store.database.engines import EngineKey, SharedEngines
from tests.support.postgres import PostgresServer
from tests.support.stores import FINGERPRINT, ready_job

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


def _engine(store: Store) -> Engine:
    return store._database.engine


def test_stores_of_one_process_share_what_was_compiled(store_url: str) -> None:
    with open_store(store_url) as first:
        first.find_job("job")
    with open_store(store_url, create=False) as second, open_store(store_url, create=False) as third:
        assert _engine(second) is _engine(third)
        second.find_job("job")
        compiled = len(_engine(third)._compiled_cache or ())
        third.find_job("job")
        assert len(_engine(third)._compiled_cache or ()) == compiled > 0


def test_the_last_store_closes_the_connections(store_url: str) -> None:
    open_store(store_url).close()
    first, second = open_store(store_url, create=False), open_store(store_url, create=False)
    first.now()
    first.close()
    first.close()  # a second time changes nothing
    assert _idle(second) > 0
    second.now()
    second.close()
    assert _idle(second) == 0


def _idle(store: Store) -> int:
    pool: Any = _engine(store).pool
    return int(pool.checkedin())


def test_a_store_that_is_closed_leaves_the_journal_of_the_others_alone(tmp_path: Path) -> None:
    """Without it, their last commit would not outlive a power cut: SQLite syncs no folder."""
    path = tmp_path / "store.db"
    open_store(str(path)).close()
    with open_store(str(path), create=False) as kept:
        mode = _journal_mode(kept)
        kept.create_job("job", fingerprint=FINGERPRINT, settings={})
        open_store(str(path), create=False).close()
        assert _journal_mode(kept) == mode != "delete"
        kept.create_job("another", fingerprint=FINGERPRINT, settings={})
    assert [one.name for one in tmp_path.iterdir()] == ["store.db"]


def _journal_mode(store: Store) -> str:
    return str(store._read(lambda tx: tx.connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()))


def test_a_file_made_again_is_another_database(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(str(path)) as old:
        old.create_job("job", fingerprint=FINGERPRINT, settings={})
        path.unlink()
        with open_store(str(path)) as new:
            assert new.find_job("job") is None
            assert _engine(new) is not _engine(old)


def test_a_forked_child_opens_its_own_connections(store_url: str) -> None:
    """In a process of its own: this one has threads of other tests, which a child would be without."""
    command = [sys.executable, "-c", _FORKS, store_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["child", "parent"]


_FORKS = """
import os, sys
from dray.store import open_store
from tests.support.stores import FINGERPRINT

def create(store, name):
    store.create_job(name, fingerprint=FINGERPRINT, settings={})

with open_store(sys.argv[1]) as store:
    create(store, "parent")
    pid = os.fork()
    if not pid:
        with open_store(sys.argv[1], create=False) as own:
            create(own, "child")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(store.get_job("child").job_id, store.get_job("parent").job_id)
"""


def test_a_shard_task_keeps_one_connection_also_where_its_lease_is_renewed_beside_a_commit(
    postgres_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver counts one for each shard task when it asks how many the server allows."""
    seen: list[int] = []

    def attempted(work: OpenWork, **options: Any) -> AttemptResult:
        together = threading.Barrier(2)

        def look(tx: Tx) -> None:
            tx.execute(select(tx.now))
            together.wait(10)

        beside = threading.Thread(target=lambda: work.store._database.read(look))
        beside.start()
        work.store._database.write(look)
        beside.join()
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name = 'dray'"
        with postgres.connect() as other:
            deadline = time.monotonic() + 5  # a server process takes a moment to end
            count = [postgres_url.rpartition("/")[2]]
            while (here := other.execute(query, count).fetchone()) != (1,) and time.monotonic() < deadline:
                time.sleep(0.02)
        assert here is not None
        seen.append(here[0])
        return AttemptResult(how=AttemptEnd.HELD)

    monkeypatch.setattr(task, "attempt", attempted)
    with open_store(postgres_url) as store:
        job = ready_job(store)
        shard = store.shards("job")[0]
    work = ShardWork(job=job, shard=shard, store_url=postgres_url)
    task.try_once(work, task.RayReplicas(), Backoff(), lambda line: None)
    assert seen == [1]


def test_engines_without_a_store_are_few(tmp_path: Path) -> None:
    for number in range(20):
        open_store(str(tmp_path / f"{number}.db")).close()
    engines = SharedEngines(lambda key: pytest.fail("not asked for"))
    assert not engines._shared
    from dray.store.database.connection import _ENGINES

    unused = [key for key, one in _ENGINES._shared.items() if not one.users]
    assert 0 < len(unused) <= 8
    assert all(isinstance(key, EngineKey) for key in unused)
