"""A job that was suspended in Prefect is paused in the store, also when its run then fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.states import Suspended

from dray.driver.executor import TaskEnd
from dray.driver.whole_job import Run
from dray.errors import JobFailedError, JobPausedError
from dray.job.beginning.opening import open_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob, reopen
from dray.job.options.settings import JobSettings
from dray.store import JobState
from tasks import heeding
from tasks.failing import driving, note_failure
from tasks.prefect_run import Wish
from tests.support.lanes import parts_on
from tests.support.thread_executor import ThreadExecutor
from tests.support.thread_fleet import ThreadFleet

pytestmark = pytest.mark.unit


class _SuspendedThenFails(ThreadExecutor):
    """The first poll passes the suspension on, as the thread that heeds Prefect does, and then fails."""

    def __init__(self, fleet: ThreadFleet, job: OpenJob) -> None:
        super().__init__(fleet)
        self._job = job

    def poll(self, seconds: float) -> list[TaskEnd]:
        heeding._tell(self._job, Wish.SUSPEND)
        raise JobFailedError("a node was lost")


def test_an_error_in_a_suspended_job_leaves_it_paused(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heeding, "get_run_logger", lambda: logging.getLogger("test"))
    job = open_job(make_settings(replicas=1, job_id="job"))
    fleet = ThreadFleet(["node-0"])
    parts = replace(parts_on(fleet), executor_of=lambda _: _SuspendedThenFails(fleet, job))
    with (
        pytest.raises(JobPausedError, match="suspended in Prefect; `dray resume job"),
        driving(job, heeding.AskedOfRun(wish=Wish.SUSPEND)),
    ):
        try:
            Run(job, Timeline(job.started), parts, None).answer_rows()
        except JobFailedError as error:  # as ``tasks.cluster.cluster_of`` does
            note_failure(job, error)
            raise
    with reopen(job) as store:
        found = store.get_job("job")
    assert (found.state, found.reason, found.driver) == (JobState.PAUSED, heeding.SUSPENDED, None)


@pytest.mark.parametrize("above", [True, False])
def test_a_job_whose_suspended_flow_calls_it_again_pauses(
    above: bool,
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Resume of the run above goes on with the job. A script's run has no Resume: it is told a command."""
    asked: State[Any] | None = Suspended() if above else None
    monkeypatch.setattr(heeding, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(heeding, "suspension", lambda: asked)
    job = open_job(make_settings(job_id="job"))
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(Pause if above else JobPausedError) as raised,
        driving(job, heeding.AskedOfRun(wish=Wish.SUSPEND)),
    ):
        raise heeding.suspended(job)
    assert getattr(raised.value, "state", None) is asked
    assert caplog.text.count("resume the suspended run to go on") == above
    with reopen(job) as store:
        assert store.get_job("job").state is JobState.PAUSED
