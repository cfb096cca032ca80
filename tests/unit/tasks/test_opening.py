"""Whose job it is: a deployment's run beside a driver that lives, and after one that died."""

from __future__ import annotations

import inspect
import logging
import threading
from pathlib import Path

import pytest

from dray.errors import JobBusyError
from dray.job.beginning import opening as jobs
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.store import Store, open_store
from tasks import opening
from tests.support.command import write_requests

pytestmark = pytest.mark.unit


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSettings:
    """A job that another process, on another machine, opened with a lease of two seconds."""
    from dray.requests.sources import RowDefaults, source_of

    monkeypatch.setattr(opening, "_LOOK_EVERY", 0.1)
    monkeypatch.setattr(opening, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(jobs, "DRIVER_TTL", 2.0)
    monkeypatch.setattr(jobs, "owner_name", lambda: "elsewhere/1/1/x")
    made = JobSettings(
        source=source_of(str(write_requests(tmp_path / "in.jsonl", 3))),
        defaults=RowDefaults(),
        model="m",
        output=str(tmp_path / "out"),
        store_url=f"sqlite:///{tmp_path / 'dray.db'}",
        engine="simulated",
        job_id="job",
    )
    open_job(made)
    monkeypatch.setattr(jobs, "owner_name", lambda: "here/2/2/y")
    return made


def opened(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch, *, deployed: bool
) -> OpenJob | opening.Declined:
    monkeypatch.setattr(opening, "of_deployment", lambda: deployed)
    monkeypatch.setattr(opening, "in_deployment", lambda: deployed)
    found: OpenJob | opening.Declined = inspect.unwrap(opening.open_job)(settings, 0.0)
    return found


def test_the_lease_of_a_driver_that_died_is_waited_for(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(settings, monkeypatch, deployed=True)
    assert isinstance(job, OpenJob)
    assert job.lease.owner == "here/2/2/y"


def test_a_driver_that_lives_keeps_its_job_and_is_named(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(settings.store_url) as store:
        lives = threading.Event()
        thread = threading.Thread(target=renew, args=(store, lives))
        thread.start()
        try:
            busy = opened(settings, monkeypatch, deployed=True)
        finally:
            lives.set()
            thread.join()
    assert isinstance(busy, opening.Declined)
    assert "process 1 on elsewhere" in busy.reason
    assert not busy.cancelled


def renew(store: Store, over: threading.Event) -> None:
    """What the other driver does: its lease moves on."""
    from dray.store.records import JobLease

    job = store.get_job("job")
    assert job.driver is not None
    lease = JobLease(job_id="job", key=job.key, epoch=job.epoch, owner=job.driver, ttl=60.0)
    while not over.wait(0.05):
        store.renew_job(lease)


def test_any_other_caller_is_refused_at_once(settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobBusyError, match="process 1 on elsewhere"):
        opened(settings, monkeypatch, deployed=False)
