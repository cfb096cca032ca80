"""A cancel in Prefect reaches the store when that is back, and no run but its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import Suspended

from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.store import Job, JobState, open_store
from tasks import failing, heeding, stopping
from tasks.prefect_run import Wish
from tests.support.command import write_requests
from tests.support.waiting import until

pytestmark = pytest.mark.unit

Ask = Callable[[OpenJob], None]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenJob:
    for module in (heeding, stopping):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(heeding, "ASK_EVERY", 0.0)
    monkeypatch.setattr(heeding, "_asked", lambda: Wish.CANCEL)
    monkeypatch.setattr(heeding, "suspension", lambda: None)
    monkeypatch.setattr(failing, "is_cancelled", lambda: True)
    return open_job(
        JobSettings(
            source=source_of(str(write_requests(tmp_path / "in.jsonl", 3))),
            defaults=RowDefaults(),
            model="m",
            output=str(tmp_path / "out"),
            store_url=f"sqlite:///{tmp_path / 'jobs.db'}",
            engine="simulated",
            job_id="job",
        )
    )


def by_signal(job: OpenJob) -> None:
    """What the main thread does at a SIGTERM of Prefect's worker; the shards have stopped."""
    done: Future[None] = Future()
    done.set_result(None)
    stopping._cancel(job, done)


def by_heeding(job: OpenJob) -> None:
    """What the thread does that asks Prefect; the run ends before the store is back."""
    with heeding.heeding(job):
        time.sleep(1.5)


def by_ending(job: OpenJob) -> None:
    """What the run does last."""
    failing.note_failure(job, TerminationSignal(signal=15))


def kept(job: OpenJob) -> Job:
    with open_store(job.settings.store_url, create=False) as store:
        return store.get_job("job")


@pytest.mark.parametrize("ask", [by_signal, by_heeding])
def test_a_store_that_comes_back_takes_it(job: OpenJob, ask: Ask, tmp_path: Path) -> None:
    file, aside = tmp_path / "jobs.db", tmp_path / "aside.db"
    file.rename(aside)
    back = threading.Timer(4, lambda: aside.rename(file))
    back.start()
    ask(job)
    back.join()
    assert kept(job).cancelled_at is not None


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("ask", [by_signal, by_heeding, by_ending])
def test_another_run_that_has_the_job_goes_on(job: OpenJob, ask: Ask) -> None:
    with open_store(job.settings.store_url) as store:
        taken = store.claim_job("job", "another", takeover=lambda _: True)
    ask(job)
    found = kept(job)
    assert (found.driver, found.epoch) == ("another", taken.epoch)
    assert (found.cancel_requested, found.cancelled_at) == (False, None)


def test_the_store_says_so_before_the_cluster_ends(job: OpenJob) -> None:
    by_signal(job)
    found = kept(job)
    assert (found.state, found.reason) == (JobState.CANCELLED, "cancelled in Prefect")
    assert found.driver is not None  # the run gives the lease back at its end


def test_shards_that_do_not_stop_are_not_waited_for_for_ever(
    job: OpenJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(stopping, "_LEAST_SECONDS", 0.1)
    stopping._cancel(job, Future())
    assert kept(job).state is JobState.CANCELLED


@pytest.mark.parametrize("end", [KeyboardInterrupt(), TerminationSignal(signal=15)])
@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.EXPIRED])
def test_a_cancel_that_comes_too_late_changes_nothing(
    job: OpenJob, state: JobState, end: BaseException
) -> None:
    """The files are published: all that is left to do is to give the lease back."""
    with open_store(job.settings.store_url) as store:
        store.set_job_state(job.lease, state)
    failing.note_failure(job, end)
    found = kept(job)
    assert (found.state, found.reason, found.driver) == (state, None, None)


@pytest.mark.parametrize("end", [KeyboardInterrupt, asyncio.CancelledError])
def test_ctrl_c_and_a_timeout_stop_the_shards_and_the_same_call_goes_on(
    job: OpenJob, end: type[BaseException]
) -> None:
    """The run was over, its shards ran on, and the next call in the process was refused as busy."""
    stopped = threading.Event()

    def work() -> None:
        with open_store(job.settings.store_url, create=False) as store:
            while not store.stop_signals("job").stop:
                time.sleep(0.05)
        stopped.set()

    def look() -> None:
        raise end

    with pytest.raises(end), failing.driving(job, heeding.AskedOfRun()):
        stopping.stoppable(job, work, look)
    assert stopped.is_set()
    found = kept(job)
    assert (found.state, found.reason) == (JobState.CANCELLED, f"its run was ended ({end.__name__})")
    assert found.cancelled_at is None
    assert open_job(job.settings).lease.epoch == job.lease.epoch + 1


def test_a_cancel_that_came_too_late_is_not_said_to_be_taken(
    job: OpenJob, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(job.settings.store_url) as store:
        store.set_job_state(job.lease, JobState.COMPLETED)
    with caplog.at_level(logging.INFO), heeding.heeding(job) as heard:
        until(lambda: heard.wish is Wish.CANCEL)
    assert "cancel requested in Prefect: too late, the job has its answers" in caplog.text
    assert "rows are kept" not in caplog.text


def test_a_suspension_of_a_job_that_writes_its_files_is_not_said_to_be_taken(
    job: OpenJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heeding, "suspension", Suspended)
    monkeypatch.setattr(heeding, "_asked", lambda: None)
    with open_store(job.settings.store_url) as store:
        store.set_job_state(job.lease, JobState.FINALIZING)
    with caplog.at_level(logging.INFO), heeding.heeding(job) as heard:
        until(lambda: heard.wish is Wish.SUSPEND)
    assert "suspend requested in Prefect: too late, the job has its answers" in caplog.text
    assert kept(job).state is JobState.FINALIZING


def test_a_cancel_that_follows_a_suspension_cancels_the_paused_job(
    job: OpenJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process still lives for some seconds: it heard the suspension alone, and left the job paused."""
    asked = [Wish.SUSPEND]
    monkeypatch.setattr(heeding, "suspension", Suspended)
    monkeypatch.setattr(heeding, "_asked", lambda: asked[-1])
    with heeding.heeding(job) as heard:
        until(lambda: heard.wish is Wish.SUSPEND, 10)
        assert kept(job).state is JobState.PAUSED
        asked.append(Wish.CANCEL)
        until(lambda: heard.wish is Wish.CANCEL, 10)
    failing.note_failure(job, Pause(state=Suspended()))  # the run's end was on its way
    found = kept(job)
    assert (found.state, found.reason, found.driver) == (JobState.CANCELLED, "cancelled in Prefect", None)
    assert found.cancelled_at is not None
