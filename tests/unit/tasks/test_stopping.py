"""Work beside the main thread: its result, its error, its context. How a cancel ends it: tests/acceptance."""

from __future__ import annotations

import contextvars
import signal
import threading
from typing import cast

import pytest

from dray.errors import JobFailedError
from dray.job.open_job import OpenJob
from tasks.stopping import disarm_ray, stoppable

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


def test_rays_alarm_is_called_off() -> None:
    signal.alarm(100)
    disarm_ray()
    assert signal.alarm(0) == 0  # seconds left of an alarm that is still set
