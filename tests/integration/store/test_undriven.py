"""A job whose driver is gone says so, and is cancelled at once; a driver that pauses its job."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cli import status
from dray.cli.jobs import cancel_job
from dray.cli.status import show_status
from dray.errors import FencedError, JobPausedError
from dray.job.driverless import cancel_or_ask, is_undriven, no_driver
from dray.job.heeding import Heed
from dray.owner import owner_name
from dray.store import JobState, ShardState, Store
from tests.support.stores import FakeClock, outcome, ready_job

pytestmark = pytest.mark.integration


def dead_driver() -> str:
    """The name of a driver whose process has ended."""
    command = "from dray.owner import owner_name; print(owner_name())"
    return subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    ).stdout.strip()


def said(store: Store) -> str | None:
    return no_driver(store.get_job("job"), store.now())


def test_a_driver_whose_lease_is_live_is_believed(store: Store) -> None:
    ready_job(store)
    assert said(store) is None


@pytest.mark.parametrize(("seconds", "span"), [(63, "3 s"), (240, "3 min"), (3 * 86400, "3 d")])
def test_a_lease_that_ended_is_no_driver(store: Store, clock: FakeClock, seconds: int, span: str) -> None:
    ready_job(store)
    clock.pass_seconds(seconds)
    assert said(store) == f"no driver: its lease ended {span} ago"


def test_a_process_of_this_machine_that_died_is_no_driver(store: Store) -> None:
    lease = ready_job(store)
    store.release_job(lease)
    store.claim_job("job", dead_driver())
    assert said(store) == "no driver: its process on this machine is gone"
    store.claim_job("job", owner_name(), takeover=lambda _: True)
    assert said(store) is None


def test_a_job_is_undriven_once_its_lease_is_over(store: Store, clock: FakeClock) -> None:
    lease = ready_job(store)
    store.release_job(lease)
    assert is_undriven(store.get_job("job"), store.now())
    store.claim_job("job", dead_driver())
    assert not is_undriven(store.get_job("job"), store.now())  # its driver may be started again
    clock.pass_seconds(61)
    assert is_undriven(store.get_job("job"), store.now())
    store.set_job_state(store.claim_job("job", owner_name()), JobState.PAUSED)
    clock.pass_seconds(61)
    assert not is_undriven(store.get_job("job"), store.now())


def test_a_job_at_rest_needs_no_driver(store: Store, clock: FakeClock) -> None:
    store.set_job_state(ready_job(store), JobState.FAILED, reason="a shard failed")
    clock.pass_seconds(1000)
    assert said(store) is None


def test_a_cancel_without_a_driver_is_done_at_once(store: Store, clock: FakeClock) -> None:
    lease = ready_job(store)
    shard = store.claim_shard(lease, 0, owner="worker")
    assert shard is not None
    store.commit(shard, [outcome(0)])
    clock.pass_seconds(61)

    assert cancel_or_ask(store, "job")

    job = store.get_job("job")
    assert (job.state, job.driver) == (JobState.CANCELLED, None)
    assert {one.state for one in store.shards("job")} == {ShardState.PENDING}
    with pytest.raises(FencedError):  # a driver and a worker that wake up write nothing more
        store.renew_job(lease)
    with pytest.raises(FencedError):
        store.commit(shard, [outcome(1)])
    assert store.counts("job").done == 1
    assert store.claim_job("job", "another", resume=True).epoch > lease.epoch  # and a resume goes on
    assert store.get_job("job").state is JobState.IN_PROGRESS


def test_a_cancel_with_a_driver_is_left_to_it(store: Store) -> None:
    ready_job(store)
    assert not cancel_or_ask(store, "job")
    assert store.get_job("job").state is JobState.IN_PROGRESS
    assert store.get_job("job").cancel_requested


def test_a_paused_job_is_cancelled_at_once(store: Store) -> None:
    lease = ready_job(store)
    assert store.pause_job(lease, reason="suspended")
    store.release_job(lease)
    assert cancel_or_ask(store, "job")
    assert store.get_job("job").state is JobState.CANCELLED


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED])
def test_a_cancel_leaves_a_job_that_has_ended_alone(store: Store, state: JobState) -> None:
    lease = ready_job(store)
    store.set_job_state(lease, state)
    store.release_job(lease)
    assert not cancel_or_ask(store, "job")
    assert store.get_job("job").state is state


def test_a_pause_comes_too_late_for_a_job_that_is_being_finished(store: Store) -> None:
    lease = ready_job(store)
    store.set_job_state(lease, JobState.FINALIZING)
    assert not store.pause_job(lease, reason="suspended")
    store.set_job_state(lease, JobState.COMPLETED)
    assert not store.pause_job(lease, reason="suspended")
    assert store.get_job("job").state is JobState.COMPLETED
    store.release_job(lease)
    with pytest.raises(FencedError):
        store.pause_job(lease, reason="suspended")


def test_a_pause_is_heard_by_whatever_waits(store: Store, store_url: str) -> None:
    store.pause_job(ready_job(store), reason="suspended in Prefect")
    job: Any = SimpleNamespace(job_id="job", settings=SimpleNamespace(store_url=store_url))
    with Heed(job) as heed, pytest.raises(JobPausedError, match=r"^suspended in Prefect$"):
        heed.look()


def test_watch_of_a_job_without_a_driver_says_how_to_go_on(
    store: Store, store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(status, "UNDRIVEN_SECONDS", 0.3)
    ready_job(store)  # by a clock that has long passed
    reference = store_url if "://" in store_url else f"sqlite:///{store_url}"
    found: list[int] = []
    watcher = threading.Thread(
        target=lambda: found.append(status.watch_status("job", reference, json=False)), daemon=True
    )
    watcher.start()
    watcher.join(30)
    assert found == [1]
    shown = capsys.readouterr()
    assert "job job has no driver: its lease ended" in shown.err
    assert "`dray resume job" in shown.err
    assert "driver    no driver: its lease ended" in shown.out


def test_the_commands_say_it(store: Store, store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ready_job(store)  # by a clock that has long passed
    reference = store_url if "://" in store_url else f"sqlite:///{store_url}"
    show_status("job", reference, json=False)
    shown = "".join(capsys.readouterr())
    assert "no driver: its lease ended" in shown
    assert "`dray resume job" in shown
    show_status("job", reference, json=True)
    assert "no driver: its lease ended" in capsys.readouterr().out
    cancel_job("job", reference, json=True)
    assert '"state":"cancelled"' in capsys.readouterr().out.replace(": ", ":")
