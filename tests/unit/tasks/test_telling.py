"""How a run tells Prefect of its end: by events, upon which automations act, and by its state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from dray.driver.resting import put_to_rest
from dray.errors import (
    CancelledError,
    DrayError,
    FencedError,
    JobBlockedError,
    JobFailedError,
    JobPausedError,
    StoreFatalError,
    StoreUnreachableError,
)
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.store import open_store
from tasks import telling
from tasks.opening import Declined

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (JobPausedError("the store was away"), "paused"),
        (JobBlockedError("the budget is spent"), "blocked"),
    ],
)
def test_a_job_that_would_stop_there_again_has_an_event_of_its_own(
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
    error: JobPausedError,
    event: str,
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(telling, "tell_of_job", lambda job_id, what, payload: heard.append(what))
    monkeypatch.setattr(telling, "get_run_logger", lambda: logging.getLogger("test"))
    job = open_job(make_settings(job_id="job"))

    def work() -> None:
        with telling.report_lifecycle(job):
            put_to_rest(job, error)
            raise error

    with pytest.raises(JobPausedError):
        work()
    assert heard == ["started", event]


Told = list[tuple[str, Any]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The events that a run sends, and their reasons."""
    events: Told = []
    monkeypatch.setattr(
        telling, "tell_of_job", lambda job_id, what, payload: events.append((what, payload.get("reason")))
    )
    monkeypatch.setattr(telling, "get_run_logger", lambda: logging.getLogger("test"))
    return events


def fail(job: OpenJob, error: DrayError) -> None:
    with pytest.raises(type(error)), telling.report_lifecycle(job):
        raise error


AWAY = "the store has been away for 30 minutes"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (JobPausedError(AWAY), [("paused", AWAY)]),
        (StoreUnreachableError(AWAY), [("paused", AWAY)]),
        (JobBlockedError("the budget is spent"), [("blocked", "the budget is spent")]),
        (JobFailedError("a node was lost"), [("failed", "a node was lost")]),
        (FencedError("another driver took over"), []),
        (CancelledError("the job was cancelled"), []),
    ],
)
def test_a_run_whose_store_is_away_tells_by_what_ended_it(
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
    heard: Told,
    error: DrayError,
    told: Told,
) -> None:
    """The store was away for 30 minutes: no automation heard of the very pause that it is for."""

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnreachableError("the server does not answer")

    job = open_job(make_settings(job_id="job"))
    monkeypatch.setattr(telling, "reopen", away)
    fail(job, error)
    assert heard[1:] == told


def test_a_store_that_took_no_end_of_the_job_is_no_reason_to_be_silent(
    make_settings: Callable[..., JobSettings], heard: Told
) -> None:
    """A disk of the database's server that is full: it gives the job's state, and takes no other."""
    job = open_job(make_settings(job_id="job"))
    fail(job, StoreFatalError("the disk of the server is full"))
    assert heard[1:] == [("paused", "the disk of the server is full")]


def test_a_run_whose_job_another_driver_has_tells_nothing(
    make_settings: Callable[..., JobSettings], heard: Told
) -> None:
    job = open_job(make_settings(job_id="job"))
    with open_store(job.settings.store_url) as store:
        store.claim_job("job", "another", takeover=lambda _: True)
    fail(job, JobPausedError(AWAY))
    assert heard[1:] == []


@pytest.mark.parametrize(("told", "name"), [(True, "Cancelled"), (False, "Skipped")])
def test_a_run_that_is_cancelled_while_it_waits_for_another_driver_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, told: bool, name: str
) -> None:
    """Prefect refuses it any other end."""
    monkeypatch.setattr(telling, "is_told_to_cancel", lambda: told)
    state = telling.declined_state(Declined(reason="another process drives the job", cancelled=False))
    assert (state.name, state.message) == (name, "another process drives the job")
