"""Work beside the main thread: its result, its error, its context. How a cancel ends it: tests/acceptance."""

from __future__ import annotations

import contextvars
import signal
import threading
from contextlib import nullcontext
from typing import cast
from unittest.mock import Mock

import pytest
from prefect.exceptions import TerminationSignal

from dray.cluster import ClusterSettings
from dray.errors import JobFailedError
from dray.job.open_job import OpenJob
from tasks import cluster
from tasks.stopping import stoppable

pytestmark = pytest.mark.unit

JOB = cast("OpenJob", None)  # looked at only when the run was cancelled
where: contextvars.ContextVar[str] = contextvars.ContextVar("where")


def test_gives_the_result() -> None:
    assert stoppable(JOB, lambda: 7) == 7


def test_runs_elsewhere_with_the_same_context() -> None:
    where.set("flow run")
    name, seen = stoppable(JOB, lambda: (threading.current_thread().name, where.get()))
    assert (name, seen) == ("dray-job", "flow run")
    assert threading.current_thread().name != name


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    error = JobFailedError("shard 3 failed")

    def work() -> None:
        raise error

    with pytest.raises(JobFailedError) as raised:
        stoppable(JOB, work)
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "runs_on"), [(JobFailedError("shard 3 failed"), True), (TerminationSignal(signal=15), False)]
)
def test_rays_alarm_is_called_off_and_prefects_timeout_runs_on(
    error: BaseException, runs_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray sets the one alarm of a process upon a SIGTERM, and Prefect for the flow's ``timeout_seconds``."""
    for name, put in (("_api_for_workers", nullcontext), ("open_cluster", Mock()), ("note_failure", Mock())):
        monkeypatch.setattr(cluster, name, put)
    signal.alarm(100)
    with pytest.raises(type(error)), cluster.cluster_of(JOB, ClusterSettings()):
        raise error
    assert (signal.alarm(0) > 0) is runs_on  # seconds left of an alarm that is still set
