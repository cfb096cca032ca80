"""How long a job goes on without a replica that can take work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from dray.cluster.base import START_SECONDS
from dray.driver.events import Event
from dray.driver.replicas.pool import ReplicaPool
from dray.driver.replicas.readiness import Readiness
from dray.errors import EngineStartError, JobPausedError

pytestmark = pytest.mark.unit

HALF = START_SECONDS / 2 + 1


class Job:
    """A pool that is what a test says, and what the driver is told of it."""

    def __init__(self) -> None:
        self.time, self.count, self.begun, self.spot = 0.0, 0, False, False
        self.reason: str | None = None
        self.events: list[Event] = []
        pool = SimpleNamespace(
            lanes=3,
            watched=lambda: self.time,
            ready=lambda: self.count,
            starts=lambda: [1] if self.begun else [],
            waiting=lambda: self.reason,
        )
        self.readiness = Readiness(cast("ReplicaPool", pool), self.events.append, lambda: self.spot)

    def look(self, seconds: float = 0.0, *, ready: int = 0, awaited: bool = True) -> None:
        self.time += seconds
        self.count, self.begun = ready, self.begun or ready > 0
        self.readiness.look(awaited=awaited)


def test_a_job_without_a_first_replica_fails() -> None:
    job = Job()
    job.look(HALF)
    job.reason = "3 of 3 replicas wait: each asks for 8 GPUs"
    with pytest.raises(
        EngineStartError, match="none of 3 replicas is ready after 1800 s: 3 of 3 replicas wa"
    ):
        job.look(HALF)


def test_a_job_whose_replicas_went_pauses_with_the_reason() -> None:
    job = Job()
    job.look(ready=3)
    for ready in (0, 1, 0):  # from the last one on
        job.look(HALF, ready=ready)
    job.reason = "each asks for 8 GPUs"
    with pytest.raises(
        JobPausedError, match=r"none of 3 .* for 30 minutes \(each asks .*\); .*`dray resume JOB`"
    ):
        job.look(HALF)


def test_a_job_waits_for_spot_until_its_deadline() -> None:
    """Its plan says that there is time to lose: a pause would let the deadline pass."""
    job = Job()
    job.look(ready=3)
    job.spot = True
    for _ in range(20):
        job.look(HALF)
    job.spot = False
    job.look(HALF)
    with pytest.raises(JobPausedError):
        job.look(HALF)


def test_a_job_that_is_to_stop_needs_none() -> None:
    job = Job()
    job.look(ready=1)
    for _ in range(4):
        job.look(HALF, awaited=False)


def test_what_replicas_wait_for_is_told_when_it_changes() -> None:
    job = Job()
    for job.reason in (None, "for a GPU", "for a GPU", None):
        job.look(ready=1)
    assert [event.text for event in job.events] == ["for a GPU", "no replica waits for a place any more"]
