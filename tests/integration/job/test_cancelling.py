"""A cancel of a run while its store is away, and after another driver has taken the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.errors import FencedError, StoreError
from dray.job.beginning.opening import open_job
from dray.job.cancelling import cancel
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.store import open_store
from tests.support.command import write_requests
from tests.support.cutting_proxy import CuttingProxy
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration


class Away:
    """A job's store, which can go away and come back."""

    def __init__(self, url: str, *, go: Callable[[], None], come: Callable[[], None]) -> None:
        self.url = url
        self.go = go
        self.come = come


@pytest.fixture(params=["sqlite", "postgresql"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Away]:
    if request.param == "sqlite":
        file, aside = tmp_path / "jobs.db", tmp_path / "aside.db"
        yield Away(f"sqlite:///{file}", go=lambda: _move(file, aside), come=lambda: _move(aside, file))
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url: str = request.getfixturevalue("postgres_url")
    with CuttingProxy(postgres.port) as proxy:
        through = url.replace(f":{postgres.port}/", f":{proxy.port}/")
        yield Away(through, go=lambda: _cut(proxy), come=proxy.resume)


def _cut(proxy: CuttingProxy) -> None:
    proxy.refuse()
    proxy.cut()


def _move(here: Path, there: Path) -> None:
    here.rename(there)


@pytest.fixture
def job(away: Away, tmp_path: Path) -> OpenJob:
    return open_job(
        JobSettings(
            source=source_of(str(write_requests(tmp_path / "in.jsonl", 3))),
            defaults=RowDefaults(),
            model="m",
            output=str(tmp_path / "out"),
            store_url=away.url,
            engine="simulated",
            job_id="job",
        )
    )


@pytest.mark.heavy
def test_it_is_asked_until_the_store_is_back(job: OpenJob, away: Away) -> None:
    away.go()
    asking = threading.Thread(target=cancel, args=(job,), daemon=True)
    asking.start()
    asking.join(6)
    assert asking.is_alive()
    away.come()
    asking.join(30)
    assert not asking.is_alive()
    with open_store(away.url) as store:
        assert store.get_job("job").cancel_requested
        assert store.get_job("job").cancelled_at is not None


def test_it_ends_in_time(job: OpenJob, away: Away) -> None:
    away.go()
    began = time.monotonic()
    with pytest.raises(StoreError):
        cancel(job, seconds=3)
    assert time.monotonic() - began < 20
    away.come()


def test_another_run_of_the_job_goes_on(job: OpenJob, away: Away) -> None:
    with open_store(away.url) as store:
        store.claim_job("job", "another", takeover=lambda _: True)
    away.go()
    back = threading.Timer(2, away.come)
    back.start()
    with pytest.raises(FencedError):
        cancel(job)
    back.join()
    with open_store(away.url) as store:
        found = store.get_job("job")
    assert (found.driver, found.cancel_requested, found.cancelled_at) == ("another", False, None)
