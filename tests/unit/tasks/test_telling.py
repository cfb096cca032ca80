"""How a run tells Prefect of its end: by events, upon which automations act, and by its state."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from dray.driver.resting import put_to_rest
from dray.errors import JobBlockedError, JobPausedError
from dray.job.beginning.opening import open_job
from dray.job.options.settings import JobSettings
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


@pytest.mark.parametrize(("told", "name"), [(True, "Cancelled"), (False, "Skipped")])
def test_a_run_that_is_cancelled_while_it_waits_for_another_driver_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, told: bool, name: str
) -> None:
    """Prefect refuses it any other end."""
    monkeypatch.setattr(telling, "is_told_to_cancel", lambda: told)
    state = telling.declined_state(Declined(reason="another process drives the job", cancelled=False))
    assert (state.name, state.message) == (name, "another process drives the job")
