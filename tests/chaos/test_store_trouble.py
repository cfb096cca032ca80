"""The store away, slow or full while a job runs: it waits, and loses and repeats nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.store import JobState, open_store
from tests.support.chaos import Job
from tests.support.cutting_proxy import CuttingProxy
from tests.support.postgres import PostgresServer
from tests.support.raylets import Raylets, Shape

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

REPLICAS = 2


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    found = Raylets(tmp_path_factory.mktemp("raylets"), 2, shape=Shape(head_cpus=1, cpus=1))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgres.port) as running:
        yield running


@pytest.fixture
def make_job(raylets: Raylets, tmp_path: Path) -> Callable[..., Job]:
    def make(**changes: object) -> Job:
        values: dict[str, object] = {
            "rows": 1200,
            "replicas": REPLICAS,
            "settings": ("max_num_seqs=16", "seconds_per_token=0.05"),
            "more": ("--shard-rows", "300"),
        }
        return Job(raylets=raylets, folder=tmp_path, **{**values, **changes})  # type: ignore[arg-type]

    return make


def _through(postgres: PostgresServer, proxy: CuttingProxy) -> tuple[str, str]:
    """The URL of a new database, direct and through the proxy."""
    direct = postgres.url(postgres.create_database())
    return direct, direct.replace(f":{postgres.port}/", f":{proxy.port}/")


@pytest.mark.long
def test_a_line_that_is_cut_stalled_and_refused(
    make_job: Callable[..., Job], postgres: PostgresServer, proxy: CuttingProxy
) -> None:
    """For less than the lease: nobody is interrupted, and nothing is computed again."""
    direct, through = _through(postgres, proxy)
    job = make_job(store=direct)
    run = job.start(through=through)
    job.until_committed(run, 100)
    proxy.cut()
    job.until_committed(run, 300)
    proxy.stall()
    time.sleep(5)
    proxy.cut()
    proxy.resume()
    job.until_committed(run, 600)
    proxy.refuse()
    proxy.cut()
    time.sleep(20)
    proxy.resume()
    figures = job.finished(run)
    print(figures)
    assert figures.recomputed == 0
    assert job.causes() == set()
    assert job.charges() == []


@pytest.mark.long
def test_a_server_that_crashes_and_comes_back(make_job: Callable[..., Job], postgres: PostgresServer) -> None:
    job = make_job(store=postgres.url(postgres.create_database()))
    run = job.start()
    for rows in (100, 400, 800):
        job.until_committed(run, rows)
        postgres.restart("immediate")
    figures = job.finished(run)
    print(figures)
    assert figures.recomputed == 0
    assert job.charges() == []


@pytest.mark.long
def test_a_store_away_for_longer_than_the_leases(
    make_job: Callable[..., Job], postgres: PostgresServer, proxy: CuttingProxy
) -> None:
    """The holders give up in time, and their tasks take the shards again: not superseded, and not charged."""
    direct, through = _through(postgres, proxy)
    job = make_job(store=direct, settings=("max_num_seqs=16", "seconds_per_token=0.1"))
    run = job.start(through=through, DRAY_NO_WAIT="")
    job.until_committed(run, 100)
    proxy.refuse()
    proxy.cut()
    time.sleep(110)
    proxy.resume()
    figures = job.finished(run)
    print(figures)
    assert job.charges() == []
    assert figures.recomputed <= 4 * 16 * 4  # what was in flight, fed ahead and not committed, of four shards


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON results EXECUTE FUNCTION full_disk();
"""


@pytest.mark.heavy
def test_a_full_disk_pauses_the_job_and_a_resume_ends_it(
    make_job: Callable[..., Job], postgres: PostgresServer
) -> None:
    database = postgres.create_database()
    job = make_job(store=postgres.url(database))
    run = job.start()
    job.until_committed(run, 100)
    with postgres.connect(database) as connection:
        connection.execute(FULL)
    ended = run.wait(120)
    assert ended.code == 1, ended.stderr
    assert "full" in ended.stderr
    assert "dray resume" in ended.stderr
    run.assert_nothing_left()
    with open_store(job.store, create=False) as store:
        assert store.get_job("job").state is JobState.PAUSED
    with postgres.connect(database) as connection:
        connection.execute("DROP TRIGGER full_disk ON results")
    figures = job.finished(job.start())
    print(figures)
    assert job.charges() == []
